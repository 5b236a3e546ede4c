"""Java and the jars of Kafka on this machine, for brokers of the sandbox and for Spark.

java   the Java that runs brokers and Spark
jars   Kafka's jars, fetched by Ivy, and the message schemas in a jar
cache  the user's cache of downloads and builds, and its lock
"""
