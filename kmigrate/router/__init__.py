"""A layer-7 Kafka proxy: clients see the target cluster at the router's addresses (design of the router).

Only `server`, `listeners` and `upstream` know sockets, clock and tasks; everything else decides on what it is given.
"""
