"""The command line: the composition root, and the only package that knows a terminal.

`app` holds the tree of commands. `call` turns a function into a command: common flags, configuration, errors. A command
opens the target's state log, has `workflow` look or write, waits if needed, and returns an `Answer`. `output` prints
the answer as a view or as JSON, and the exit code is one of `exits`.

Every call:
    app, call        the tree of commands, and a call
    options          shared flags
    targets          the target of a call
    amounts, times, patterns
                     values that a person types
    wizard           questions to a person
    waiting          the wait for the result of an intent
    output, exits    the output, and the exit codes
    words            names from outside, made harmless
    views            model values for a person
    absent           features that this version lacks

Commands:
    link, finish     links, and the clients' leave
    topic, bulk      topics, and copies by Spark
    group, offsets   groups, and positions
    plan             the outlook of topics
    promote          promotes of topics
    status           snapshots
    verify, follow   the parity check, once or again and again
    checks, compared, report_files
                     job, ranges and reports of a check
    doctor, probes   what machine and clusters can do
    creation, source_defaults
                     configs of target topics, for guards and plans
    playbook         a file of steps
    sandbox, demo    the sandbox, and a whole migration there

Processes:
    run              the commands that run engines
    engine_kinds, engine_settings, engines
                     kinds and settings of the engines, and the engines themselves
    workers          further processes of a command
    exposed          pages over HTTP

Documentation:
    reference, apis_reference, metrics_reference
                     generated parts of docs/cli.md, docs/apis.md and docs/metrics.md
"""
