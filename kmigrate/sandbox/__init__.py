"""A small Kafka estate on this machine: brokers, live traffic and an independent judge.

The clients of `traffic` write requests and answers to histories. At the end `checker` compares these with the target's
content, as `final_read` reads it. The judge shares no code with the engines: this package never uses kmigrate's codec.

Brokers:
    estate        a source, a target, and their run folder
    kafka         a cluster of brokers
    properties    server.properties of a broker
    security      certificate authority, users and ACLs of a secure cluster
    zookeeper     the ZooKeeper of old brokers
    topics        the creation of topics
    distribution  the origin of brokers: own distribution, image or jars; Java's archive of loaded classes
    containers    brokers in containers
    processes     processes by identity
    lifeline      the keeper that ends a broker with its parent
    ports         free ports

Clients:
    traffic                                               the set of live clients: start, roll, stop, catch up
    client_specs                                          the clients and their logins as values
    clients                                               a client as a process
    librdkafka_clients, aiokafka_clients, driven_clients  clients by family
    toolchains                                            builds of the drivers
    drivers                                               programs for Java, franz-go and kafka-python
    sending                                               the schedule, numbers and history lines of sends
    payload                                               the content of a record from its id
    reading                                               the reads and commits of a group member
    preload                                               the content of the source at the start

The judge:
    history      the lines that clients write
    final_read   the records that the target really holds
    checker      the verdict
    ledger       sends, reads and transactions of a run
    group_order  the order of reads and commits
    pauses       the waits of the clients
"""
