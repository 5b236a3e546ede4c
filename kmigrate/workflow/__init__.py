"""The steps of a migration: verbs write intents, the controller orders the steps, status shows facts.

A verb looks (guards become findings) and writes one intent per thing into the state log. The controller drives
promotes and group promotes by records. Nothing here holds state of its own.

    base        open connections to both clusters, plans, and what several rooms ask of the clusters
    groups      consumer groups: readers, members, committed offsets, promote of one group
    promote     promote of one topic: fence, drain, barrier, flip, and the watch on late writes
    status      one snapshot of a migration
    controller  the process that drives promotes
    verbs       the verbs of the command line
    playbook    files of steps, and the conditions that they wait for
"""
