"""A file per command, in the order of a migration, and what only commands need.

doctor           `kmigrate doctor`
explain          `kmigrate explain`
probes           what a cluster can do
link             `kmigrate link`
plan             `kmigrate plan`
target_configs   configs of target topics, for guards and findings
topic            `kmigrate topic`
patterns         names by regular expression
bulk             `kmigrate topic mirror --engine`
run              `kmigrate run` and the engines alone
group            `kmigrate group`
status           `kmigrate status`
stragglers       `kmigrate stragglers`
wait             `kmigrate wait`
promote          `kmigrate promote`
report           `kmigrate report`
rollback         `kmigrate rollback`
target_lost      `kmigrate rollback --target-lost`
rehearse         `kmigrate rehearse`
offsets          `kmigrate offsets`
verify           `kmigrate verify`
finish           `kmigrate link finish`
playbook         `kmigrate playbook`
playbook_run     the run of a playbook, step by step
playbook_exec    commands of a playbook
playbook_verbs   the verbs that a step may name, and their flags
sandbox          `kmigrate sandbox`
demo             the demo
"""
