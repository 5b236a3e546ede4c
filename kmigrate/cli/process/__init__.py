"""The engines of a process: mirrors, router and controller.

engine_kinds      which engines a process runs
engine_settings   settings of the engines, from the configuration
engines           builds and runs the engines
workers           further processes of `--workers N`
metrics_endpoint  /metrics and /healthz
"""
