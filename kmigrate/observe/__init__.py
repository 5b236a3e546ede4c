"""Measures a process's work: metrics, and their text for Prometheus. Pure: callers pass the time."""
