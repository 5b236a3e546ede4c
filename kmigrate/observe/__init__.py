"""Measures a process's work: metrics, and their text for Prometheus. Pure: callers pass the time.

Each part of a process declares its metrics, and adds to a registry the functions that read the samples. A scrape of
/metrics calls these functions and renders the results.

    registry       the metrics of a process, the functions that read their samples, and Prometheus' text format
    distributions  histograms, and quantiles of the last minute
"""
