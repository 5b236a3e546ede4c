"""Writes of one client connection.

handler        Produce requests: held, decided, sent, and answered in request order
decide         the decision for each partition: forward, send to the target, hold, or answer
split          a Produce request on its way in a part per destination, and its merged response
fast_path      the same in one pass for a request that goes to one source leader
in_flight      writes that source brokers have not answered
ordering       the order of idempotent batches after a failure
answer_errors  errors in answers, counted
own_producer   the router's own producer id, for connections that bring none
"""
