"""`rollback --target-lost`: what the source holds once the target is gone, from the source alone.

The state log is lost with the target. The facts come from the notes that the mirrors have kept at the source
(`kmigrate.model.way_back_notes`), and from the source's logs. Nothing is changed, but for groups that a person asks to
release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.client import LATEST, ClusterClient, LogOffset, api_versions
from kmigrate.cluster.committed_offsets import read_all_positions, read_positions
from kmigrate.cluster.coordinators import answered
from kmigrate.cluster.fetch import fetch_one
from kmigrate.cluster.groups import GroupHold, held_groups
from kmigrate.cluster.transactions import OpenTransaction, open_transactions
from kmigrate.errors import KmigrateError, Refused, Unreachable
from kmigrate.model.acls import deny_write
from kmigrate.model.coupling import unit_of
from kmigrate.model.nearest import name_hint
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import NoteState, WayBackNote, decode_note, notes_group
from kmigrate.model.words import quoted
from kmigrate.net.clock import sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import walk
from kmigrate.workflow.base.bootstraps import host_and_port, takes_connections
from kmigrate.workflow.base.connections import reach
from kmigrate.workflow.base.plan import Finding, Plan, refuse, warn

__all__ = [
    "GroupAtSource",
    "PartitionAtSource",
    "SourceFindings",
    "UnitAtSource",
    "denied_at_source",
    "examine_source",
    "read_notes",
    "refuse_living_target",
    "release_groups",
    "router_findings",
]

_ANSWER_S = 3.0
"""Longest wait for an answer at the address of a router."""
_SETTLE_S = 1.0
"""Time between two looks at the source's log ends: a copy that goes on writes something by then."""
_AT_ONCE = 8
_READ_BYTES = 1 << 20

Key = tuple[str, int]
"""A topic and a partition."""
Notes = dict[Key, WayBackNote]


@dataclass(frozen=True, slots=True)
class PartitionAtSource:
    """What the source holds of one partition that had gone to the target."""

    topic: str
    partition: int
    state: NoteState
    """State of the way back when its note was written."""
    reason: str
    """Reason why the way back had ended, or why the copy had stopped; or ''."""
    complete_to: int
    """Up to this offset the source holds all that the target held."""
    source_end: int
    """The source's log end."""
    target_end: int
    """Last known log end of the target; −1 if unknown."""
    target_end_ms: int
    """Time of this log end, by the mirror's clock; 0 if unknown."""
    missing: int
    """Offsets that the target held by then and the source lacks; −1 if unknown."""
    complete_ms: int
    """All that the target held at this time is at the source, by the mirror's clock; 0 if unknown."""
    foreign: str = ""
    """First batch at the source that the copy back has not written, in words; or ''."""
    waits_for: OpenTransaction | None = None
    """Transaction at the source that hides all later records from read_committed readers."""

    @property
    def is_complete(self) -> bool:
        """True if the source is known to lack nothing that the target was known to hold."""
        return self.state is not NoteState.ENDED and self.missing == 0


@dataclass(frozen=True, slots=True)
class GroupAtSource:
    """The committed offsets of a promoted group that the source has: those of the group's promote."""

    group: str
    promoted_ms: int
    """Time of the group's promote; 0 if no note tells it."""
    offsets: Mapping[str, Mapping[int, int]]
    """Committed offsets at the source, by topic and partition."""
    held: bool = False
    """True while kmigrate's placeholder keeps members and commits out of the group at the source."""


@dataclass(frozen=True, slots=True)
class UnitAtSource:
    """Topics that transactions write together, and the groups with committed offsets in these transactions."""

    topics: tuple[str, ...]
    groups: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    more_transactional_ids: int
    """Number of further transactional ids; no note has their names."""
    whole_ms: int
    """Each transaction that had ended by this time is whole at the source, by the mirror's clock; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """What the source holds of a link's topics that had gone to the target."""

    link: str
    partitions: tuple[PartitionAtSource, ...]
    groups: tuple[GroupAtSource, ...]
    more_groups: int
    """Number of further promoted groups whose names no note has."""
    findings: tuple[Finding, ...] = ()
    units: tuple[UnitAtSource, ...] = ()
    """The topics that are written in transactions."""

    @property
    def is_complete(self) -> bool:
        return all(each.is_complete for each in self.partitions)


async def read_notes(source: ClusterClient, link: str, topics: Collection[str]) -> Notes:
    """Return a link's notes about these topics, or about all topics; refuse where a topic has no note."""
    positions = await read_positions(source, notes_group(link), stable=False)
    found = {key: decode_note(each.offset, each.metadata) for key, each in positions.items()}
    notes = {key: note for key, note in found.items() if note is not None}
    names = sorted({topic for topic, _ in notes})
    unnoted = [topic for topic in topics if topic not in names]
    if not notes or unnoted:
        name = source.settings.name
        about = f"topic {', '.join(unnoted)}{name_hint(unnoted[0], names)}" if notes else f"link {link}"
        raise Refused(
            "no-way-back-note",
            f"source {name} has no note about a copy back of {about}",
            still_true=f"nothing was changed; source {name} holds each topic up to its promote",
            next_step="a topic has notes from its promote until a week after the mirrors have ended, "
            "if it has a way back; --link and --source choose others",
        )
    return {key: note for key, note in sorted(notes.items()) if not topics or key[0] in topics}


async def refuse_living_target(target: ClusterSettings) -> None:
    """Refuse while a broker of the target answers: `rollback` then loses nothing."""
    async with ClusterClient(target) as client:
        try:
            await reach(client)
        except Unreachable:
            return
        except KmigrateError as error:  # an answer, too: somebody refuses the login
            raise _lives(target, f": {error.what}") from error
    raise _lives(target, "")


def _lives(target: ClusterSettings, answer: str) -> Refused:
    return Refused(
        "target-not-lost",
        f"a broker of target {target.name} ({target.bootstrap_servers}) answers{answer}",
        still_true="nothing was changed",
        next_step="kmigrate rollback TOPIC... loses nothing; if the target cannot serve, first stop all of its brokers",
    )


async def router_findings(notes: Notes, source: ClusterSettings, *, stopped: bool) -> list[Finding]:
    """Refuse while a router of the notes may serve; `stopped` is a person's word that all routers are stopped.

    A router without its target takes connections, and answers nothing: so does a load balancer without a router.
    """
    routers = {name: address for note in notes.values() for name, address in note.routers.items()}
    asked = (_router_finding(name, address, source, stopped) for name, address in sorted(routers.items()))
    return [each for each in await together(*asked) if each is not None]


async def _router_finding(name: str, address: str, source: ClusterSettings, stopped: bool) -> Finding | None:
    settings = replace(source, bootstrap=(host_and_port(address),))
    try:
        async with asyncio.timeout(_ANSWER_S), ClusterClient(settings) as client:
            if ApiKey.WRITE_TXN_MARKERS in await api_versions(client):
                return None  # brokers offer this API to each other; a router offers it to nobody
    except (Unreachable, TimeoutError):
        if not await _is_taken(address):
            return None
        if stopped:
            what = f"something at {address}, where router {name} was, takes connections and does not answer"
            return warn("router-address-taken", what, "make sure that all routers are stopped")
    except KmigrateError:  # a refused login is an answer
        pass
    remedy = "stop all routers, then repeat; if no router is left behind that address: --routers-stopped"
    return refuse("router-answers", f"router {name} takes connections at {address}", remedy)


async def _is_taken(address: str) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await takes_connections(address)
    except TimeoutError:
        return False


async def denied_at_source(source: ClusterClient, notes: Notes) -> list[Finding]:
    """Name the deny ACLs on the topics, which kept other writers out while the topics were copied back."""
    try:
        rules = await read_acls(source) or ()
    except KmigrateError:
        return []  # without the right to read ACLs kmigrate has created none
    topics = {topic for topic, _ in notes}
    name, bootstrap = source.settings.name, source.settings.bootstrap_servers
    return [
        warn(
            "writers-stay-denied",
            f"an ACL denies {rule.principal} to write {rule.name} at {name}",
            f"before its clients return: kafka-acls.sh --bootstrap-server {bootstrap} --remove --force "
            f"--deny-principal {quoted(rule.principal)} --operation Write --topic {quoted(rule.name)}",
        )
        for rule in sorted(rules)
        if rule.name in topics and rule == deny_write(rule.principal, rule.name)
    ]


async def examine_source(
    source: ClusterClient, link: str, notes: Notes, findings: Sequence[Finding] = ()
) -> SourceFindings:
    """Return what the source holds of the noted partitions; refuse while a mirror still copies."""
    Plan.of("rollback", (), findings).refuse()
    before = await _ends(source, notes)
    await sleep(_SETTLE_S)
    ends = await _ends(source, notes)
    few = asyncio.Semaphore(_AT_ONCE)

    async def look(key: Key) -> PartitionAtSource:
        async with few:
            return await _partition(source, key, notes[key], ends[key])

    transactions, looked = await together(open_transactions(source, list(notes)), together(*map(look, notes)))
    grown = [each for each in looked if each.complete_to > before[each.topic, each.partition]]
    if copying := [each for each in grown if each.state is NoteState.OPEN]:
        first = copying[0]
        raise Refused(
            "copy-back-goes-on",
            f"a mirror still copies to {first.topic}-{first.partition} of source {source.settings.name}",
            still_true="nothing was changed",
            next_step="stop all mirrors, or wait until they have nothing left to copy; then repeat",
        )
    rows = [replace(each, waits_for=transactions.get((each.topic, each.partition))) for each in looked]
    groups, more = await _groups(source, notes)
    return SourceFindings(link, tuple(rows), groups, more, tuple(findings), tuple(_units(notes, rows)))


async def _ends(source: ClusterClient, keys: Collection[Key]) -> dict[Key, int]:
    await source.refresh({topic for topic, _ in keys})
    ends: Mapping[Key, LogOffset] = await source.list_offsets(dict.fromkeys(keys, LATEST))
    for (topic, partition), end in ends.items():
        if end.error:
            raise Unreachable("no-log-end", f"{topic}-{partition}: {row(end.error).name}")
    return {key: end.offset for key, end in ends.items()}


async def _partition(source: ClusterClient, key: Key, note: WayBackNote, end: int) -> PartitionAtSource:
    start = await source.log_start(key)
    complete_to, foreign = end, ""
    if note.state is not NoteState.ROLLED_BACK:
        complete_to, foreign = await _written_by(source, key, max(note.position, start.offset), end, note.producer_id)
    missing = _missing(note, complete_to)
    return PartitionAtSource(
        *key,
        note.state,
        note.reason,
        complete_to,
        end,
        note.target_end,
        note.seen_ms,
        missing,
        note.fresh_ms if missing else note.seen_ms,
        foreign,
    )


def _missing(note: WayBackNote, complete_to: int) -> int:
    """Return how many offsets the source lacks of those that the target was known to hold; −1 if unknown."""
    match note.state:
        case NoteState.ROLLED_BACK:
            return 0
        case NoteState.OPEN if note.target_end >= 0:
            return max(0, max(note.target_end, note.position) - complete_to)
        case _:
            return -1


async def _written_by(source: ClusterClient, key: Key, start: int, end: int, producer_id: int) -> tuple[int, str]:
    """Return where the batches of a producer end that begin at `start`, and the other batch there in words, or ''."""
    at = start
    while at < end:
        part = FetchPartition(*key, at, _READ_BYTES)
        answer = await fetch_one(source, source.leader(*key), part, purpose="tail")
        if answer.error:
            raise Unreachable("log-unreadable", f"{key[0]}-{key[1]} at {at}: {row(answer.error).name}")
        before = at
        for batch in walk(answer.records):
            if batch.next_offset <= at:
                continue
            if batch.producer_id != producer_id and not batch.is_control:
                return max(at, batch.base_offset), f"offset {batch.base_offset}: producer {batch.producer_id}"
            at = batch.next_offset
        if at == before:
            return end, ""  # a log cleaner has left no batch up to the end
    return min(at, end), ""


class _Noted(NamedTuple):
    """A topic's note as a coupling."""

    name: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]


def _units(notes: Notes, rows: Sequence[PartitionAtSource]) -> Iterator[UnitAtSource]:
    """Yield the units of the noted topics that are written in transactions, by their topics."""
    writers = {topic: note for (topic, _), note in notes.items() if note.transactional_ids}
    couplings = [_Noted(topic, (topic, *note.coupled_topics), note.coupled_groups) for topic, note in writers.items()]
    left = set(writers)
    while left:
        first = min(left)
        others, groups = unit_of(couplings, [first])
        topics = {first, *others}
        left -= topics
        of_unit = [writers[topic] for topic in topics & writers.keys()]
        yield UnitAtSource(
            tuple(sorted(topics)),
            tuple(sorted(groups)),
            tuple(sorted({name for note in of_unit for name in note.transactional_ids})),
            max(note.more_transactional_ids for note in of_unit),
            _whole_ms(topics, rows),
        )


def _whole_ms(topics: Collection[str], rows: Sequence[PartitionAtSource]) -> int:
    """Return the newest time as of which all partitions of a unit are known to be complete; 0 if unknown."""
    if not {each.topic for each in rows}.issuperset(topics):
        return 0
    return min(each.complete_ms for each in rows if each.topic in topics)


async def _groups(source: ClusterClient, notes: Notes) -> tuple[tuple[GroupAtSource, ...], int]:
    """Return the promoted groups with their committed offsets at the source, and how many more the notes count.

    A group without a name in the notes is found by the placeholder that holds the group at the source.
    """
    promoted: dict[str, int] = {}
    for note in notes.values():
        promoted |= note.groups
    topics = {topic for topic, _ in notes}
    held = {group for group, is_held in (await held_groups(source)).items() if is_held}
    committed = answered(await read_all_positions(source, held.union(promoted)))
    unnamed = {
        group for group in held - promoted.keys() if any(topic in topics for topic, _ in committed.get(group, ()))
    }
    promoted |= dict.fromkeys(unnamed, 0)
    found = []
    for group, at_ms in sorted(promoted.items()):
        offsets: dict[str, dict[int, int]] = {}
        for (topic, partition), each in sorted(committed.get(group, {}).items()):
            if topic in topics:
                offsets.setdefault(topic, {})[partition] = each.offset
        found.append(GroupAtSource(group, at_ms, offsets, group in held))
    more = max((note.more_groups for note in notes.values()), default=0)
    return tuple(found), max(0, more - len(unnamed))


async def release_groups(source: ClusterClient, report: SourceFindings) -> SourceFindings:
    """Let members into the report's groups at the source, and return the report with what is held then."""
    for each in report.groups:
        if each.held:
            await GroupHold(source, each.group).release()
    held = await held_groups(source)
    groups = (replace(each, held=held.get(each.group, False)) for each in report.groups)
    return replace(report, groups=tuple(groups))
