"""The engines of a process: mirrors, router and controller.

engine_settings   the kinds of engines, and their settings from the configuration
engines           builds and runs the engines
workers           further processes: `--workers N`, and the web page of `--http`
status_page       the process of the web page
metrics_endpoint  /metrics, /healthz and /readyz, on one port
health            which engines may get work, and why not
logs              the log on stderr, and the events on stdout
"""
