"""The steps of a migration: verbs write intents, the controller orders the steps, status shows facts.

A verb's guards become findings. Every process keeps its decisions in the state log alone.

    base        connections to both clusters, plans, and questions that several rooms ask
    groups      consumer groups: readers, members, committed offsets, promote of a group
    promote     promote of a topic: fence, drain, barrier, flip, and the watch on late writes
    status      a snapshot of a migration
    controller  the process that drives promotes of topics and groups by records
    rehearsal   promote and rollback of shadow topics with a copy of the real traffic
    verbs       the verbs of the command line, which write one intent per topic, group or link
    playbook    files of steps, and conditions to wait for
"""
