"""Pages of docs, and a dashboard, that are generated from the code itself.

commands     docs/cli.md
errors       docs/errors.md
metrics      docs/metrics.md
apis         docs/apis.md
json_schema  docs/json.schema.json
json_types   JSON schemas of Python types
source       Python source as syntax trees
playbooks    docs/playbooks.md
shapes       the documents of all commands, as types
lane_states  the diagram in docs/mirror.md
dashboard    deploy/grafana/kmigrate.json
"""
