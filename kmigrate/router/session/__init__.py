"""One client connection: login, then its requests in order.

`session` takes each request, asks `login` while the client is not logged in, and hands the request to the room of
its API. A request that has to wait stops the connection, so that no later request overtakes it.

    session  order and dispatch of one connection's requests
    login    SASL: passed to the target unchanged, or judged here by the table of clients
"""
