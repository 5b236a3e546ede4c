"""Measures a process's work and readiness: metrics, and their text for Prometheus. Pure: callers pass the time.

registry       the metrics of a process, the functions that read their samples, and Prometheus' text format
distributions  histograms, and quantiles of the last minute
readiness      whether a part of a process may get work, and why not
"""
