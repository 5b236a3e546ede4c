"""The tree of commands, and the only place where a call becomes an exit code."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kmigrate import __version__
from kmigrate.cli.base.absent import asked_for_absent
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.lazy import LazyCommand
from kmigrate.cli.base.leading import behind_verb
from kmigrate.cli.base.output import Output
from kmigrate.cli.base.words import Text, below
from kmigrate.errors import UsageError

__all__ = ["COMMANDS", "app", "main"]

_IN = "kmigrate.cli.commands"
_GUIDE = "kmigrate.cli.guide"

COMMANDS = (
    LazyCommand("init", f"{_GUIDE}.init:app", "Write the first kmigrate.toml, by questions on a terminal or by flags."),
    LazyCommand(
        "guide",
        f"{_GUIDE}.guide:app",
        "Show where the migration stands and what comes next, and lead through the steps.",
    ),
    LazyCommand("doctor", f"{_IN}.doctor:app", "Check this machine and every cluster."),
    LazyCommand("plan", f"{_IN}.plan:app", "Print what each topic would get, or what is left of its copy."),
    LazyCommand("link", f"{_IN}.finish:app", "Links: one source cluster to one target cluster."),
    LazyCommand("topic", f"{_IN}.topic:app", "Mirrored topics."),
    LazyCommand("run", f"{_IN}.run:app", "Run mirror, router and controller together."),
    LazyCommand("group", f"{_IN}.group:app", "Mirrored consumer groups."),
    LazyCommand("status", f"{_IN}.status:app", "Show links, topics, groups and running processes."),
    LazyCommand(
        "stragglers",
        f"{_IN}.stragglers:app",
        "List the clients that pass the routers by, and what becomes of their records.",
    ),
    LazyCommand("wait", f"{_IN}.wait:app", "Wait until a condition holds; changes nothing."),
    LazyCommand(
        "rehearse",
        f"{_IN}.rehearse:app",
        "Rehearse a promote and its rollback on shadow topics, with a copy of the real traffic.",
    ),
    LazyCommand("promote", f"{_IN}.promote:app", "Switch topics over to the target."),
    LazyCommand("report", f"{_IN}.report:app", "Reports of promotes and rollbacks."),
    LazyCommand("rollback", f"{_IN}.rollback:app", "Switch promoted topics back to the source."),
    LazyCommand("offsets", f"{_IN}.offsets:app", "Positions, from one cluster to the other."),
    LazyCommand("verify", f"{_IN}.verify:app", "Compare source and target with Spark."),
    LazyCommand("playbook", f"{_IN}.playbook:app", "Migrations written down as steps."),
    LazyCommand("mirror", f"{_IN}.run:mirror_app", "The mirror process."),
    LazyCommand("router", f"{_IN}.run:router_app", "The router process."),
    LazyCommand("controller", f"{_IN}.run:controller_app", "The controller process."),
    LazyCommand(
        "explain",
        f"{_IN}.explain:app",
        "Explain the reference of an error: what happened, what is still true, and what to do.",
    ),
    LazyCommand("sandbox", f"{_IN}.sandbox:app", "Two real Kafka clusters on this machine."),
)
"""The verbs and groups of verbs, in the order of the help, which is the order of a migration."""


class _Tree(TyperGroup):
    """The root of the tree: common options may stand before the verb, in a call and where a shell completes a call."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of a call; a call to complete may still lack its verb."""
        given = behind_verb(args)
        if extra.get("resilient_parsing") and given and given[0].startswith("--"):
            given = []  # options alone: a shell asks for the verb
        return super().make_context(info_name, given, parent, **extra)


_root = typer.Typer(
    name="kmigrate",
    cls=_Tree,
    help="Moves a live Kafka estate from one cluster to another, with nothing lost, doubled or reordered.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        Output().show(Text(f"kmigrate {__version__}"))
        raise typer.Exit


@_root.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a verb."""


def _tree() -> TyperGroup:
    tree = cast("TyperGroup", get_command(_root))
    for each in COMMANDS:
        tree.add_command(each)
    return tree


app = _tree()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return an exit code of `kmigrate.cli.base.exits`."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given and sys.stdin.isatty() and sys.stdout.isatty():
        given = ["guide"]
    try:
        return int(app(given, prog_name="kmigrate", standalone_mode=False) or Exit.OK)
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except SystemExit as end:  # typer has shown a help text, or answered a shell: fish asks by the exit code
        return end.code if isinstance(end.code, int) else Exit.OK
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
        Output().show(below(message.splitlines()), as_it_is=True)
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

    from kmigrate.cli.base.call import Call, run_to_end  # reads what a verb needs

    return run_to_end(Call(json="--json" in given), complain)
