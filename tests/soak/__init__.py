"""Soaks on real brokers: many faults over many records in one run, judged by librdkafka."""
