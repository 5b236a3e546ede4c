"""Benchmarks on real brokers: each a script of its own, a ratio to a stated baseline in a single run."""
