"""Playbooks: TOML files whose steps are the command line's verbs, plus `exec` and `wait`.

steps       the parser of playbooks, which names every mistake
conditions  conditions on a snapshot that a playbook or `kmigrate wait` waits for
places      line and column of each key in a TOML text
waiting     the wait for a condition
"""
