"""The configuration: files, environment and flags become one frozen value when a process starts.

    load         the sources and their order
    settings     the sections and their keys
    clusters     [clusters.NAME]
    security     the security keys of a cluster
    door         the security keys of [router]
    given        a value with its origin
    secret_text  values that are never shown
    listen       HOST:PORT
    nearest      the hint for a misspelt word
    java_names   the hint for a name of Kafka's Java clients
"""
