"""The command line: the composition root, and the only package that knows a terminal.

A command gets a call (`base.call`), runs a verb or an engine, and shows a view; the call turns errors into exit codes.

    app        the command tree, and exit codes
    base       what all commands share: flags, output, every error, questions, waiting
    views      model values as tables and texts
    process    the engines of one process
    watch      the whole screen of `status --watch`
    commands   one file per command, and what only commands need
    guide      the first configuration by questions, and a migration step by step
    reference  generated pages of docs
"""
