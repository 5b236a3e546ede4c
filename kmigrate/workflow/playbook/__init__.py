"""Playbooks: TOML files whose steps are the command line's verbs, plus `exec` and `wait`.

steps       the file of steps, and each mistake in it
conditions  conditions on a snapshot that a playbook waits for
"""
