"""The router: a layer-7 Kafka proxy. Clients see the target cluster at the router's addresses.

A request enters at `process.listeners`, is decided in `session.session`, and goes to the room of its API. The
answer leaves in request order. Only `process` performs I/O; every other room decides on what it is given.

    settings      how one router runs, as one frozen value
    metrics       the router's metrics, and where each value is read
    process       sockets, clock and tasks: listeners, upstream connections, the router's place in the state log
    session       one client connection: login, order of requests, dispatch by API
    produce       writes: decided by partition, split by destination, merged into one response
    admin         admin requests: node ids translated, mirrored topics protected
    transactions  transactional ids, producer identities, and the cluster that holds each transaction
    groups        consumer groups that follow their source group
    fetch         reads: fetch responses, reads beyond the copy, log ends
    shared        the state that all connections share: routes, gate, forwards, limits
    wire          request and response bodies, read and changed where they stand
"""
