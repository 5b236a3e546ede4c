"""A small Kafka estate on this machine: brokers, live traffic and an independent judge."""
