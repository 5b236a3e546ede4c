"""The only home of Spark: the parity check and the bulk copy.

The parity check is an independent witness that reads both clusters with Spark's own Kafka source. The bulk copy runs
the mirror's copier in Spark tasks.
"""
