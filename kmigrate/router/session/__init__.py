"""One client connection: login, then its requests in order.

session  order and dispatch of one connection's requests, which ask `login` while the client is not logged in
login    SASL: passed to the target unchanged, or judged here by the table of clients
coordinator_searches  clients that keep the coordinator's address of a router that is gone
"""
