"""One module per family of Kafka APIs that the router reads: what it parses, refuses, splits or rewrites."""
