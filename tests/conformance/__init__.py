"""Test suites of other people's Kafka clients, run on a plain broker and through the router."""
