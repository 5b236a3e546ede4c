"""The tree of commands, and the only place where a call becomes an exit code."""

from __future__ import annotations

import sys

import typer

from kmigrate.cli.base.absent import asked_for_absent
from kmigrate.cli.base.call import Call, run_to_end
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.leading import behind_verb
from kmigrate.cli.base.output import Output
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands import (
    doctor,
    explain,
    finish,
    group,
    offsets,
    plan,
    playbook,
    promote,
    run,
    sandbox,
    status,
    topic,
    verify,
    wait,
)
from kmigrate.cli.guide import guide, init
from kmigrate.errors import UsageError

__all__ = ["app", "main"]

app = typer.Typer(
    name="kmigrate",
    help="Moves a live Kafka estate from one cluster to another, with nothing lost, doubled or reordered.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for _sub in (finish.app, topic.app, group.app, offsets.app, run.mirror_app, run.router_app, run.controller_app):
    app.add_typer(_sub)
app.add_typer(sandbox.app)
app.add_typer(playbook.app)
for _single in (
    init.app,
    guide.app,
    promote.app,
    run.app,
    status.app,
    wait.app,
    verify.app,
    plan.app,
    doctor.app,
    explain.app,
):
    app.registered_commands += _single.registered_commands


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return an exit code of `kmigrate.cli.base.exits`."""
    given = behind_verb(sys.argv[1:] if arguments is None else arguments)
    if not given and sys.stdin.isatty() and sys.stdout.isatty():
        given = ["guide"]
    try:
        return int(app(given, prog_name="kmigrate", standalone_mode=False) or Exit.OK)
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except SystemExit:  # typer has shown a help text
        return Exit.OK
    except OSError as error:  # The help text could not be printed; errors of a verb leave by `run_to_end`
        Output().unwritten(error)
        return Exit.OK
    except Exception as error:
        # typer bundles click under a private name, so usage errors are recognised by their method `format_message`.
        say = getattr(error, "format_message", None)
        if say is None:
            raise
        return _misused(given, type(error).__name__, say(), getattr(error, "ctx", None))


def _misused(given: list[str], kind: str, message: str, context: object) -> int:
    if kind == "NoArgsIsHelpError":
        Output().show(Text(message), as_it_is=True)
        return Exit.USAGE
    path = getattr(context, "command_path", "kmigrate")
    usage = UsageError(
        "usage",
        message,
        still_true="nothing was contacted or changed",
        next_step=f"{path} --help",
    )
    asked = asked_for_absent(message, path)
    if asked is not None:
        words, absent = asked
        usage = UsageError(
            "not-in-this-version",
            f"{words}: this version lacks this feature: {absent.feature}",
            still_true=usage.still_true,
            next_step=f"{absent.instead}; docs/promises.md lists what is not in this version",
        )

    def complain() -> None:
        raise usage

    return run_to_end(Call(json="--json" in given), complain)
