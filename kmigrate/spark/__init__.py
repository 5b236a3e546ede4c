"""The one home of Spark: an independent witness that reads both clusters with Spark's own Kafka source."""
