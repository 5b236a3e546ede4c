"""The configuration: files, environment and flags become one frozen value when a process starts.

`load` reads all sources as values with an origin; sections and clusters check and convert these values. A wrong value
ends the command with place, key and expected form. Only a router reads `listener_access`, at its start.

    load         the sources and their order
    raw_value    a value with its origin, and the error for a wrong value
    settings     the sections and their keys
    link_settings           the settings of a link: defaults from the sections, and values of `--set`
    clusters     [clusters.NAME]
    security     the security keys of a cluster
    listener_access         the security keys of [router], and the table of its clients
    secret_text  values that are never shown
    listen       HOST:PORT
    java_names   the hint for a name of Kafka's Java clients
    java_properties         the property file of a Java client as keys of [clusters.NAME]
"""
