"""Pages of docs, and a dashboard, that are generated from the code itself.

commands     docs/cli.md
errors       docs/errors.md
metrics      docs/metrics.md
apis         docs/apis.md
lane_states  the diagram in docs/mirror.md
dashboard    deploy/grafana/kmigrate.json
"""
