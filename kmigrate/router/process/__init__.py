"""The router's process: the only room that knows sockets, clock, tasks, clusters and the state log.

server             the process: its tasks, the state log, the routing table, the report to the controller
ports              the listeners: bootstrap, one per target broker, one per other router
listeners          client connections, each with an upstream connection per broker
upstream           one connection from a client to one broker: login, requests, answers in order
credentials        the listeners' certificate and table of clients, read again after a change
answers            coroutines whose results sessions wait for
clusters           requests of the router itself to source and target: leaders, topic ids, producers
copy_progress      the wait until the copy reaches an offset
transaction_store  the records of transactional ids in the state log
registration       the router's place in the state log
reachability       whether an address accepts connections
"""
