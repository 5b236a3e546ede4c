"""The command line: the composition root, and the only package that knows a terminal.

`app` holds the command tree. A command gets a call (`base.call`), runs a verb of the workflow or an engine, and
shows the result by a view. `base.call` also prints every error and turns the error into an exit code.

    app        the command tree, and exit codes
    base       what all commands share: flags, output, questions, waiting
    views      model values as tables and texts
    process    the engines of one process
    commands   one file per command, and what only commands need
    reference  generated pages of docs
"""
