"""`kmigrate guide`: where a migration stands, what comes next, and the way there step by step."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from kmigrate.cli.base import wizard
from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.doctor import doctor
from kmigrate.cli.commands.plan import plan as forecast
from kmigrate.cli.guide.answers import Answers
from kmigrate.cli.guide.files import write_files
from kmigrate.cli.guide.init import init
from kmigrate.cli.guide.itinerary import playbook_text, step_json, steps_of
from kmigrate.cli.guide.journey import Journey
from kmigrate.cli.guide.next_step import NextStep, Stage, next_step
from kmigrate.cli.guide.selection import Selection
from kmigrate.cli.guide.standing import Standing, standing_of
from kmigrate.cli.guide.views import (
    clients_line,
    forecast_lines,
    standing_view,
    steps_view,
    trouble_of,
)
from kmigrate.config.raw_value import located
from kmigrate.errors import Failed, Interrupted, KmigrateError, Refused, UsageError
from kmigrate.extras import VERIFY
from kmigrate.kafka_jars.java import find_java
from kmigrate.model.words import advised
from kmigrate.workflow import verbs
from kmigrate.workflow.status.snapshot import snapshot

__all__ = ["app", "guide"]

app = typer.Typer()

_NO_STATE = ("no-state-log", "no-target")
"""References of errors that say that no link exists yet."""


@command(app, "guide")
def guide(
    call: Call,
    topics: Annotated[list[str] | None, typer.Option("--topic", help="Topic to move (may be repeated).")] = None,
    groups: Annotated[list[str] | None, typer.Option("--group", help="Group to move (may be repeated).")] = None,
    link: Annotated[str | None, typer.Option("--link", help="Link (else [defaults] link, else the only link).")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Source cluster (else the other cluster).")] = None,
    roll_producers: Annotated[
        str, typer.Option("--roll-producers", metavar="COMMAND", help="Restarts producers with the router's address.")
    ] = "",
    roll_consumers: Annotated[
        str, typer.Option("--roll-consumers", metavar="COMMAND", help="Restarts consumers with the router's address.")
    ] = "",
    clients_moved: Annotated[
        bool, typer.Option("--clients-moved", help="All clients use the router's address: do not ask.")
    ] = False,
    verify: Annotated[
        bool | None, typer.Option("--verify/--no-verify", help="Compare all records after the promote (else not).")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the steps as a playbook.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing playbook.")] = False,
    run: Annotated[
        bool, typer.Option("--run", help="Run the steps; on a terminal with a question before each.")
    ] = False,
    yes: Yes = False,
) -> Answer | None:
    """Show where the migration stands and what comes next, and lead through the steps.

    On a terminal the guide asks; each answer has a flag. Without --run nothing is changed. Each step names the command
    that the step stands for. A guide that was stopped goes on at the first step that is left.
    """
    answers = Answers(
        list(topics or []),
        list(groups or []),
        link or "",
        source or "",
        call.target or "",
        write,
        run,
        roll_producers,
        roll_consumers,
        verify,
        overwrite,
        clients_moved,
        yes,
        call.config,
    )
    guided = _Guide(call, answers, asks=call.interactive and not yes)
    try:
        return guided.lead()
    except (KeyboardInterrupt, typer.Abort):
        raise Interrupted(
            "interrupted",
            "the guide was stopped",
            still_true="nothing is half done: the guide changes something only by the commands that it has shown",
            next_step=answers.command(),
        ) from None


@dataclass
class _Guide:
    """One run of the guide."""

    call: Call
    answers: Answers
    asks: bool
    found: dict[str, Any] = field(default_factory=dict)
    """The JSON document of the call."""

    def lead(self) -> Answer | None:
        if self.call.json and self.answers.run:
            self.call.out.as_lines()
        at = self._stand()
        following = self._next(at)
        if following.stage is Stage.CONFIGURE and self.asks and not self._configured():
            return None
        if following.stage is Stage.CONFIGURE:
            if not self.asks:
                return self._answer(standing_view(at, following))
            at = self._stand()
            following = self._next(at)
        if following.stage in (Stage.CHOOSE_LINK, Stage.REACH_CLUSTER):
            return self._answer(standing_view(at, following))
        self._show(standing_view(at, following))
        if following.stage in (Stage.LEAVE, Stage.DONE) and not self.answers.topics:
            return self._answer(None)
        way = self._way(at, following)
        if way is _Way.LEAVE:
            return self._answer(None)
        if way is _Way.FINISH:
            return self._finish(at)
        selection = Selection(self.call, self.answers, self.asks)
        selection.settle_clusters(at)
        survey = selection.look()
        self.found["source"] = survey.as_json()
        selection.choose_names(at, survey)
        return self._travel(at) if self.answers.topics else self._answer(None)

    # where are we

    def _stand(self) -> Standing:
        place, names = self._configuration()
        at = asyncio.run(self._ask_state(place)) if len(names) >= 2 else standing_of(place, names, None, None)
        self.found["standing"], self.found["next"] = at.as_json(), self._next(at).as_json()
        return at

    def _configuration(self) -> tuple[str, Collection[str]]:
        """Return where the configuration is, and its clusters; a person may name a file that is not written yet."""
        try:
            settings = self.call.settings
        except UsageError as error:
            if error.ref != "no-config-file" or not self.asks:
                raise
            return str(self.call.config or os.environ["KMIGRATE_CONFIG"]), ()
        return str(settings.place), settings.clusters.keys()

    async def _ask_state(self, place: str) -> Standing:
        names, link = self.call.settings.clusters.keys(), self.call.link(self.answers.link)
        try:
            async with self.call.connections() as connections:
                known = {each.name for each in connections.log.state.links()}
                if self.answers.link and known:
                    verbs.resolve_link(connections.log.state, self.answers.link)
                with self.call.out.waiting("asking both clusters"):
                    shot = await snapshot(connections)
                return standing_of(place, names, shot, link if link in known else None)
        except KmigrateError as error:
            if error.ref not in _NO_STATE:
                raise
            return standing_of(place, names, None, None)

    def _configured(self) -> bool:
        """Ask for the first configuration; return False if the person leaves."""
        self.call.out.show(Text("There is no configuration with two clusters yet.", style="bold"))
        how = wizard.choose(
            "How do you begin?",
            [("write kmigrate.toml by questions (kmigrate init)", "init"), ("leave", "leave")],
        )
        if how == "leave":
            self.call.out.show(Text("to try kmigrate without clusters of your own: kmigrate sandbox up"), as_it_is=True)
            return False
        self.call.out.answer(init(self.call))
        self.call = Call(self.call.config, self.call.target, debug=self.call.debug)
        return True

    def _next(self, at: Standing) -> NextStep:
        return next_step(at, self.answers.place)

    def _way(self, at: Standing, following: NextStep) -> _Way:
        """Return how to go on; once all that is mirrored is promoted, the link can end or move further topics."""
        if self.answers.topics:
            return _Way.CHOOSE
        finishing = following.stage is Stage.FINISH
        if self.asks:
            ways = _HOW_FINISHING if finishing else _HOW[bool(at.topics)]
            return wizard.choose("How do you go on?", ways)
        if not finishing:
            return _Way.CHOOSE
        return _Way.FINISH if self.answers.run else _Way.LEAVE

    def _finish(self, at: Standing) -> Answer | None:
        """Run `link finish` as a step of its own."""
        step = {
            "title": "Let the clients leave the routers for the target's own brokers. No client restarts.",
            "run": "link finish",
            "name": at.link,
        }
        Selection(self.call, self.answers, self.asks).settle_clusters(at)
        self._need_yes()
        self._journey([step]).run()
        return self._answer(None)

    # the way

    def _travel(self, at: Standing) -> Answer | None:
        answers = self.answers
        if answers.run:
            self._refuse_early()
        if self.asks and answers.verify is None and _can_verify():
            answers.verify = wizard.agree("Compare all records with Spark after the promote?", default=False)
        steps = steps_of(answers.choices())
        journey = self._journey(steps)
        if self.asks and not at.link:
            self._show(Text("The checks need a link, so the first step comes first.", style="bold"))
            if not journey.run(last=1):
                return None
        self._check(at)
        self._show(steps_view(steps, answers.choices()))
        self.found["steps"] = [step_json(number, step, answers.choices()) for number, step in enumerate(steps, start=1)]
        self._write(steps)
        if not answers.run and self.asks:
            answers.run = wizard.agree("Run the steps now, one by one?")
        if answers.run:
            self._refuse_early()
            if not journey.run():
                return None
        after = self._stand() if answers.run else at
        following = self._next(after)
        if answers.run:
            self._show(standing_view(after, following))
        elif not self.call.json:
            run = replace(answers, run=True).command()
            self.call.out.show(Text.assemble(("to run the steps: ", "dim"), run), as_it_is=True)
        return self._answer(None)

    def _refuse_early(self) -> None:
        """Refuse to run steps without a yes, or with a step that cannot succeed, before the first step."""
        self._need_yes()
        if self.answers.verify:
            VERIFY.need("kmigrate guide --verify")

    def _need_yes(self) -> None:
        """Ask once for all steps, unless the person is asked before each step."""
        if not self.asks:
            asyncio.run(self.call.confirm(self.answers.yes, "The steps promote. Run them?"))

    def _journey(self, steps: Sequence[Mapping[str, Any]]) -> Journey:
        return Journey(
            self.call,
            self.answers.choices(),
            steps,
            self.asks,
            self.answers.moved,
            self.answers.command,
            lambda: clients_line(self._stand()),
        )

    def _check(self, at: Standing) -> None:
        """Show what doctor and plan say about the clusters and the chosen topics."""
        self._command("kmigrate doctor")
        checked = doctor(self.call)
        self.found["doctor"] = checked.json
        self._show(trouble_of(checked.json))
        if not at.link and not self.asks:
            self.call.out.note("kmigrate plan needs the link, which the first step creates")
            return
        self._command(advised("plan", self.answers.link, *self.answers.topics))
        with self.call.out.waiting("forecasting the copy"):
            planned = asyncio.run(forecast(self.call, self.answers.topics, link=self.answers.link))
        self.found["plan"] = planned.json
        self._show(forecast_lines(planned.json))

    def _write(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Write the steps as a playbook, if asked to."""
        answers = self.answers
        if self.asks and answers.write is None and not answers.run:
            typed = wizard.type_in("Write the steps as a playbook to the file (empty: do not)?", "")
            answers.write = located(Path(), typed) if typed else None
        self.found["playbook"] = str(answers.write) if answers.write else None
        if answers.write is None:
            return
        try:
            write_files({answers.write: playbook_text(answers.choices(), steps)}, overwrite=answers.overwrite)
        except FileExistsError:
            raise Refused(
                "file-exists",
                f"{answers.write} exists",
                still_true="the file is as it was, and no step was run",
                next_step="give --overwrite, or another file",
            ) from None
        except OSError as error:
            raise Failed(
                "report-not-writable",
                f"{answers.write} cannot be written: {error.strerror}",
                still_true="no step was run",
                next_step="give another file to --write",
            ) from error
        self._show(Text(f"✓ written: {answers.write}", style="green"))
        self._command(f"kmigrate playbook run {shlex.quote(str(answers.write))}")
        answers.write = None

    # output

    def _show(self, view: RenderableType) -> None:
        if not self.call.json:
            self.call.out.show(view)

    def _command(self, text: str) -> None:
        if not self.call.json:
            self.call.out.show(Text(f"  $ {self.answers.place.at(text)}", style="cyan"), as_it_is=True)

    def _answer(self, view: RenderableType | None) -> Answer | None:
        """Return the JSON document; the views of a person have been shown on the way."""
        if self.call.json:
            return Answer(self.found, Group())
        if view is not None:
            self._show(view)
        return None


class _Way(Enum):
    """The ways on from a standing."""

    CHOOSE = auto()
    FINISH = auto()
    LEAVE = auto()


_LEAVE = ("leave", _Way.LEAVE)
_HOW = {
    False: [("choose topics and groups", _Way.CHOOSE), _LEAVE],
    True: [("choose topics and groups; those that are mirrored are marked", _Way.CHOOSE), _LEAVE],
}
_HOW_FINISHING = [
    ("let the clients leave the routers (kmigrate link finish)", _Way.FINISH),
    ("choose further topics and groups", _Way.CHOOSE),
    _LEAVE,
]


def _can_verify() -> bool:
    if VERIFY.missing():
        return False
    try:
        find_java(os.environ)
    except Refused:
        return False
    return True
