"""A layer-7 Kafka proxy: clients see the target cluster at the router's addresses.

Sockets, clock, tasks and the state log are used only by `server`, `listeners`, `upstream`, `ports`, `clusters`,
`copied`, `credentials`, `memory`, `reach` and `registration`. All other modules decide on the data that they are given.
"""
