"""Playbooks: TOML files whose steps are the command line's verbs, plus `exec`, `wait` and `approve`.

steps       what a parsed playbook holds: its steps in order, and the steps after a failure
fields      kinds of keys: the allowed values in words, as a check and as a JSON schema
variables   variables, their values from flags, environment and defaults, and the secrets among the values
places      line and column of each key in a TOML text
parse       the parser, which names every mistake with file, line and column
conditions  conditions on a snapshot that a playbook or `kmigrate wait` waits for
shipped     the playbooks that come with kmigrate
waiting     the wait for a condition
schema      the JSON schema of playbooks, for editors
"""
