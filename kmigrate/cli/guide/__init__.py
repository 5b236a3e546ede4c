"""The guide: the first configuration by questions, and a migration step by step.

The guide owns no logic of a migration. A step of the guide is a step of a playbook, and a playbook calls the verbs.

    init               `kmigrate init`: the first kmigrate.toml
    cluster_questions  questions about one cluster
    draft              the file before it is written
    files              new files, all or none
    guide              `kmigrate guide`: questions, checks, and the steps
    answers            the answers, and the command that repeats the answers
    selection          the choice of clusters, link, topics and groups
    standing           where a migration stands
    next_step          the table from a standing to the next step
    place              the flags that the printed commands need
    survey             topics and groups of the source
    itinerary          the steps for chosen topics and groups, as a playbook
    journey            the steps, carried out one by one
    views              tables and texts
"""
