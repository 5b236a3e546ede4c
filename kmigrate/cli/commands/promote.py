"""`kmigrate promote`: the flip of topics, and how long writes were held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group, RenderableType

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import AcceptMisplaced, LagThreshold, Link, NoWait, PlanOnly, Timeout, Topics, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.values import moment
from kmigrate.cli.base.waiting import (
    CONTROLLER_GOES_ON,
    interruptible,
    need_controller,
    need_mirror,
    watched,
)
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.verify import compare_new
from kmigrate.cli.views.plans import plan_answer, plan_view
from kmigrate.cli.views.tables import parity_view, table
from kmigrate.errors import Interrupted, UsageError
from kmigrate.extras import VERIFY
from kmigrate.model.lifecycle import NOT_COPIED_YET, TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import encode_record
from kmigrate.model.records import LatePolicy, OnLate, PromoteTerms, Schedule, TopicRecord
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.parity.report import ParityReport
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.verbs.schedule import schedule_text

__all__ = ["Holds", "app", "flip_json", "longest_holds", "promote", "report_line"]

app = typer.Typer()

_WAY_BACK = True
"""Whether a promote opens a way back where nothing is said and nothing is in the way."""
_READY_WITHIN_MS = 3_600_000
"""Time in which `--when-ready` without `--deadline` waits for the guards."""
_HOLD_SECONDS = 2.0
"""Seconds to wait after the flip until routers report how long they held requests."""


@command(app, "promote")
async def promote(
    call: Call,
    topics: Topics = None,
    link: Link = None,
    lag_threshold: LagThreshold = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare what is new with Spark first; promote only what is equal.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take back a promote that waits for its fence: topics stay mirrored.")
    ] = False,
    when_ready: Annotated[
        bool,
        typer.Option(
            "--when-ready", help="Wait for guards that refuse, instead of ending (for an hour, or --deadline)."
        ),
    ] = False,
    not_before: Annotated[
        str | None,
        typer.Option("--not-before", metavar="TIME", help="Begin at this time: ISO 8601, or +2h."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="TIME", help="Try again after each refusal or give-up until this time."),
    ] = None,
    postpone: Annotated[
        bool, typer.Option("--postpone", help="Begin once a person calls promote --release TOPIC.")
    ] = False,
    release_file: Annotated[
        str | None,
        typer.Option(
            "--release-file", metavar="PATH", help="Begin once this file exists at the controller, or --release."
        ),
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="Release postponed promotes.")] = False,
    accept_misplaced_members: AcceptMisplaced = False,
    accept_direct_writers: Annotated[
        bool,
        typer.Option(
            "--accept-direct-writers", help="Promote although producers wrote to the source without a router lately."
        ),
    ] = False,
    seal: Annotated[
        bool | None,
        typer.Option(
            "--seal/--no-seal", help="Have the source refuse writes once the promote is final (the default), or not."
        ),
    ] = None,
    on_late: Annotated[
        OnLate | None,
        typer.Option("--on-late", help="What to do with records that the source appends after the flip (else alarm)."),
    ] = None,
    way_back: Annotated[
        bool | None,
        typer.Option(
            "--way-back/--no-way-back",
            help="Copy the topics back to the source after the flip, so that `rollback` is possible; or end that copy.",
        ),
    ] = None,
    timeout: Timeout = 300.0,
    no_wait: NoWait = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Switch topics over to the target.

    Fence, drain, barrier, flip: writes through the router are held for some milliseconds and then go to the target.
    With --verify nothing is switched where a record differs; the exit code is then that of `verify`. With a time, a
    deadline, --when-ready or --postpone, the controller begins the promote when the time has come, and the call ends.
    """
    topics = call.required_list(topics, "TOPIC", "the topics to promote")
    _need_spark(verify)
    when = _When(when_ready, not_before, deadline, postpone or release_file is not None, _absolute(release_file))
    _refuse_verify_later(verify, when)
    async with call.connections() as connections:
        record = verbs.resolve_link(connections.log.state, call.link(link))
        name, window = record.name, record.settings.straggler_window_s
        look = _of_waiting(call, connections, name, topics, cancel=cancel, release=release)
        if look is not None:
            return plan_answer(await call.carry_out(look, plan))
        treatment = verbs.Treatment(seal, on_late, ends_way_back=way_back is False, who=call.who)
        treated = await verbs.treat_promoted(connections, name, topics, treatment)
        if treated is not None:
            return plan_answer(treated.plan if plan else await treated.carry_out())
        terms = PromoteTerms(
            now_ms(),
            record.settings.lag_threshold if lag_threshold is None else lag_threshold,
            record.settings.pending_timeout_s,
            record.settings.fence_timeout_s,
            accept_direct_writers,
            LatePolicy(seal is not False, on_late or OnLate.ALARM),
            _WAY_BACK if way_back is None else way_back,
            asked_by=call.who,
        )
        if when.later:
            schedule = when.schedule(terms, connections.log.now_ms(), accept_misplaced=accept_misplaced_members)
            return await _scheduled(call, connections, name, topics, schedule, plan=plan, yes=yes)
        wait = window + 1
        if not plan and _any_early(connections, name, topics):
            await need_mirror(call, connections, name, timeout, "nothing was changed: no topic is promoted")
            wait = max(wait, min(timeout, call.settings.defaults.process_wait_s))
        look = partial(
            verbs.promote_topics,
            connections,
            name,
            topics,
            terms,
            straggler_window_s=window,
            accept_misplaced=accept_misplaced_members,
        )
        with call.out.waiting("looking for clients that read and write past the routers"):
            proposal = await look(wait_s=0.0 if plan else wait)
        looked = proposal.plan
        if plan:
            return plan_answer(looked)
        if looked.changes:
            question = f"Promote {', '.join(topics)}? New writes go to the target afterwards"
            await call.confirm(yes, question, looked.warnings)
        unequal = await _unequal(call, topics, name, timeout) if verify and looked.changes else None
        if unequal is not None:
            return unequal
        with call.out.waiting("asking for the promote"):
            made = await (await look(wait_s=window + 1)).carry_out()
        if no_wait:
            return plan_answer(made)
        groups = [record.group for record in verbs.coupled_groups(connections.log.state, name, topics)]
        back = advised("promote --cancel", name, *topics)
        again = advised("wait 'topics promoted'", name, *topics)
        way_on = f"{again}; to take it back while it waits: {back}"
        with interruptible(f"the promote of {', '.join(topics)}", CONTROLLER_GOES_ON, way_on):
            if looked.changes:
                await need_mirror(call, connections, name, timeout)
                await need_controller(call, connections, timeout)
            with watched(call, connections, name, "topic", topics) as say:
                records = await verbs.wait_topics(connections, name, topics, {TopicPhase.PROMOTED}, timeout, say)
            with watched(call, connections, name, "group", groups) as say:
                opened = await verbs.wait_groups(connections, name, groups, timeout, say)
        holds = await longest_holds(connections, records)
        json = {
            **made.as_json(),
            "topics": [_as_json(record, holds[record.key]) for record in records],
            "groups": [encode_record(record) for record in opened],
        }
        return Answer(json, Group(plan_view(made), _view(records, holds)))


def _absolute(path: str | None) -> str:
    """Return the absolute path: the controller has a working folder of its own."""
    return str(Path(path).absolute()) if path is not None else ""


def _of_waiting(
    call: Call, connections: Connections, link: str, topics: list[str], *, cancel: bool, release: bool
) -> Callable[[], Awaitable[verbs.Proposal]] | None:
    """Return the verb for promotes that wait, `--cancel` or `--release`; None where neither is asked for."""
    if cancel:
        return partial(verbs.cancel_promote, connections, link, topics, who=call.who)
    return partial(verbs.release_promote, connections, link, topics) if release else None


async def _scheduled(
    call: Call, connections: Connections, link: str, topics: list[str], schedule: Schedule, *, plan: bool, yes: bool
) -> Answer:
    """Write the schedule of a promote; the controller begins the promote at its time."""
    look = partial(verbs.schedule_promote, connections, link, topics, schedule)
    question = f"Promote {', '.join(topics)}, {schedule_text(schedule)}? New writes go to the target afterwards"
    return plan_answer(await call.carry_out(look, plan, yes, question))


class _When(NamedTuple):
    """The flags of a promote at a later time, as a person typed them."""

    when_ready: bool
    not_before: str | None
    deadline: str | None
    postponed: bool
    release_file: str

    @property
    def later(self) -> bool:
        return any(self)

    def schedule(self, terms: PromoteTerms, now_ms: int, *, accept_misplaced: bool) -> Schedule:
        """Return the schedule; `--when-ready` without a deadline has a deadline of an hour from the begin on."""
        begin = moment(self.not_before, "--not-before", now_ms) if self.not_before else 0
        end = moment(self.deadline, "--deadline", now_ms) if self.deadline else 0
        if self.when_ready and not end:
            end = max(now_ms, begin) + _READY_WITHIN_MS
        if end and end <= begin:
            raise UsageError(
                "bad-moment",
                f"--deadline {self.deadline} is not later than --not-before {self.not_before}",
                still_true="nothing was changed",
                next_step="name a deadline behind the time of the begin",
            )
        return Schedule(now_ms, terms.asked_by, terms, begin, self.postponed, self.release_file, end, accept_misplaced)


def _refuse_verify_later(verify: bool, when: _When) -> None:
    if verify and when.later:
        raise UsageError(
            "verify-later",
            "--verify compares now, and the promote is to begin later",
            still_true="nothing was contacted or changed",
            next_step="kmigrate verify first, then promote at its time without --verify",
        )


def _need_spark(wanted: bool) -> None:
    if wanted:
        VERIFY.need("kmigrate promote --verify")


def _any_early(connections: Connections, link: str, topics: list[str]) -> bool:
    """Return whether the mirror has not yet begun to copy some of the topics."""
    records = (connections.log.state.topic(link, topic) for topic in topics)
    return any(record is not None and record.phase in NOT_COPIED_YET for record in records)


async def _unequal(call: Call, topics: list[str], link: str, timeout: float) -> Answer | None:
    """Compare what is new; return the answer of a call that promotes nothing, None where all is equal."""
    report = await _compared(call, topics, link, timeout)
    if report.equal:
        return None
    unchanged = Text("Nothing was promoted: the copy differs from the source.", style="red")
    fields = {"link": link, "topics": [], "parity": report.as_json()}
    return Answer(fields, Group(parity_view(report), unchanged), Exit.PARITY_MISMATCH)


async def _compared(call: Call, topics: list[str], link: str, timeout: float) -> ParityReport:
    try:
        return await compare_new(call, topics, link, timeout)
    except asyncio.CancelledError:
        raise Interrupted(
            "interrupted",
            "stopped comparing",
            still_true="nothing was promoted",
            next_step=advised("promote --verify", link, *topics),
        ) from None


Holds = dict[str, dict[int, float]]


async def longest_holds(connections: Connections, records: list[TopicRecord]) -> Holds:
    """Return the longest hold by topic key and partition; routers report holds shortly after the flip."""
    deadline = monotonic() + _HOLD_SECONDS
    routers = bool(connections.log.alive(RouterPresence))
    while True:
        holds: Holds = {record.key: {} for record in records}
        for router in connections.log.alive(RouterPresence):
            for key in holds:
                for partition, held in router.holds_ms.get(key, {}).items():
                    holds[key][partition] = max(held, holds[key].get(partition, 0.0))
        left = deadline - monotonic()
        if not routers or all(holds.values()) or left <= 0:
            return holds
        await connections.log.changed(left)


def _as_json(record: TopicRecord, holds: dict[int, float]) -> dict[str, Any]:
    return flip_json(record, record.promoted_ms, holds)


def flip_json(record: TopicRecord, flipped_ms: int, holds: dict[int, float]) -> dict[str, Any]:
    """Return a topic's record with the times of its flip."""
    return {
        **encode_record(record),
        "fence_to_flip_ms": flipped_ms - record.fenced_ms,
        "router_hold_ms": {str(partition): round(held, 3) for partition, held in sorted(holds.items())},
        "router_hold_max_ms": round(max(holds.values()), 3) if holds else None,
        "report": _report_command(record),
    }


def report_line(records: list[TopicRecord]) -> Text:
    """Return the line that names the commands of the topics' reports."""
    return Text(f"reports, in two seconds: {'; '.join(map(_report_command, records))}", style="dim")


def _report_command(record: TopicRecord) -> str:
    return advised("report show", record.link, record.topic)


def _sealed(record: TopicRecord) -> Text:
    """Return a warning that says why the source refuses writes, and until when."""
    names = sorted(set(record.seal.routers.values())) if record.seal is not None else []
    return Text(
        f"! {record.topic} is sealed on the source (max.message.bytes=1), as router {', '.join(names)} did not answer. "
        f"It stays so until the router does, or, if its process has ended: kmigrate router forget {names[0]} --dead",
        style="yellow",
    )


def _view(records: list[TopicRecord], holds: Holds) -> RenderableType:
    made = table("topic", "phase", "fence to flip", "longest hold", "barrier")
    for record in records:
        held = holds[record.key]
        made.add_row(
            record.topic,
            Text(record.phase, style="green"),
            f"{record.promoted_ms - record.fenced_ms} ms",
            f"{max(held.values()):.1f} ms" if held else "nothing was held",
            ", ".join(f"{p}:{b.offset:,}" for p, b in sorted(record.barrier.items())),
        )
    sealed = (_sealed(record) for record in records if record.seal is not None)
    return Group(made, *sealed, report_line(records))
