"""Upkeep of target topics while they are mirrored: partitions, configs and ACLs follow the source.

A round compares both clusters. Only the topic's record keeps facts between rounds, so another process can continue.

A  Partitions are created on the target first; then the record grows, and with the record the set of copied partitions.
B  The source decides replicated configs and the ACLs that kmigrate made (`configs`, `model.acls`).
C  A topic in a promote gets a last round, and the promote waits for its report (`Upkept`). So the newest configs and
   ACLs are in force, and no round comes after that.
D  A failure concerns only its topic, its group or its new names; the failure is reported, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import KmigrateError, Refused, StateLogBroken, Unreachable
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.upkeep.acls import Access, Kept
from kmigrate.mirror.upkeep.align import Aligner
from kmigrate.mirror.upkeep.configs import broker_defaults
from kmigrate.mirror.upkeep.forecast import offsets_of
from kmigrate.mirror.upkeep.hiding import wait_hidden
from kmigrate.mirror.upkeep.patterns import Pickup
from kmigrate.mirror.upkeep.topics import TopicMaker, is_compacted
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import Upkept
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord, topic_key
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep

__all__ = ["Upkeep", "round_s"]

_AT_ONCE = 100
"""Number of topics in one request for configs: a response has some 30 values for each topic."""
_TOPIC_COST_S = 0.03
_LEADERS_S = 30.0
_LOOKED_AFTER = frozenset({TopicPhase.MIRRORING, TopicPhase.PROMOTE_PENDING})


def round_s(interval: float, topics: int) -> float:
    """Return the time between rounds: reading the configs of very many topics must stay a small part of the work."""
    return max(interval, topics * _TOPIC_COST_S)


class _OvertakenError(Exception):
    """Raised when the record is no longer the version that was looked at."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A topic as reported by both clusters now."""

    source: TopicInfo | None
    target: TopicInfo | None
    source_configs: Mapping[str, ConfigValue] | KmigrateError
    target_configs: Mapping[str, ConfigValue] | KmigrateError
    target_defaults: Mapping[str, str] | KmigrateError
    """The configs that a topic inherits from the target's brokers: one answer for all topics of a look."""


class Upkeep:
    """Maintains the topics and groups of a link for as long as its process holds the lease."""

    def __init__(
        self,
        link: MirroredLink,
        maker: TopicMaker,
        aligner: Aligner,
        *,
        may_act: Callable[[], bool],
        added: Callable[[], Mapping[str, int]],
        on_change: Callable[[], None],
    ) -> None:
        self._link = link
        self._maker = maker
        self._aligner = aligner
        self._may_act = may_act
        self._added = added
        self._on_change = on_change
        self._access = Access(link)
        self._pickup = Pickup(link)
        self.working: set[str] = set()
        """Keys of the records of topics and groups that a round works on just now."""
        self._reports: dict[str, Upkept] = {}
        self._missed: dict[tuple[str, int], float] = {}
        """Time when a topic was first found gone on the source, by topic and its record's `since_ms`."""
        self._grown: dict[str, int] = {}
        self._troubled: set[str] = set()
        """Topics whose newest report names a problem."""
        self._known = State()
        """The state in which `_due` last looked for changed topics."""
        self._asked: set[str] = set()
        """Topics that were found without a report on their present phase."""
        self._no_new_names = -1
        """Epoch of the newest state without new names."""
        self._groups: set[str] = set()
        self._patterns: object = None
        self._notes: tuple[str, ...] = ()

    @property
    def reports(self) -> dict[str, Upkept]:
        """The reports to announce: those that a promote waits for, and every problem."""
        pending = {record.topic for record in self._link.state.topics_that(_is_pending, self._link.name)}
        return {
            topic: self._reports[topic]
            for topic in sorted(pending | self._troubled)
            if topic in self._reports and self._is_looked_after(topic)
        }

    def _is_looked_after(self, topic: str) -> bool:
        record = self._link.topic(topic)
        return record is not None and record.phase in _LOOKED_AFTER

    @property
    def notes(self) -> tuple[str, ...]:
        broken = self._access.problem
        return (*self._notes, *([broken.summary] if broken is not None else []))

    async def run(self) -> None:
        """Run round after round, until cancelled."""
        while True:
            began = monotonic()
            await self._guarded(None)
            until = began + round_s(self._link.settings.upkeep_s, len(self._link.topics))
            while monotonic() < until:
                due = self._due()
                if due or self._new_names():
                    await self._guarded(due)
                await self._link.log.changed(min(1.0, max(0.05, until - monotonic())))

    def _due(self) -> set[str]:
        """Return the topics that must not wait for the next round."""
        state, prefix = self._link.state, topic_key(self._link.name, "")
        changed = state.records.changed_since(self._known.records, "topic")
        self._known = state
        names = self._asked.union(key.removeprefix(prefix) for key in changed if key.startswith(prefix))
        self._asked = set(filter(self._is_asked, names))
        return self._asked | set(filter(self._has_grown, self._added()))

    def _is_asked(self, topic: str) -> bool:
        """Return whether a topic has no report on its present phase, also after a promote that was given up."""
        record, report = self._link.topic(topic), self._reports.get(topic)
        if record is None or record.phase not in _LOOKED_AFTER:
            return False
        return report is None or report.since_ms != record.since_ms

    def _has_grown(self, topic: str) -> bool:
        """Return whether the source's topic has more partitions than at the last look, and than the record."""
        record, count = self._link.topic(topic), self._added()[topic]
        if record is None or record.phase not in _LOOKED_AFTER:
            return False
        grown = record.partitions < count != self._grown.get(topic)
        if grown:
            self._grown[topic] = count
        return grown

    def _new_names(self) -> bool:
        """Return whether a person has just named new groups or expressions."""
        link, epoch = self._link.record, self._link.state.epoch
        if link is None or epoch == self._no_new_names:
            return False
        groups = {group.group for group in self._link.groups}
        is_new = _patterns(link) != self._patterns or not groups <= self._groups
        self._no_new_names = -1 if is_new else epoch
        return is_new

    async def _guarded(self, only: Collection[str] | None) -> None:
        """Run a round for all topics or for some; a failure is reported, and tried again in the next round."""
        try:
            await self._round(only)
        except StateLogBroken:
            raise
        except KmigrateError as error:
            self._notes = (error.summary,)
            await sleep(0.2)
        self._on_change()

    async def _round(self, only: Collection[str] | None) -> None:
        link = self._link.record
        if link is None or not self._may_act():
            return
        await self._access.read()
        self._patterns = _patterns(link)
        notes = await self._pick_up(link)
        for group in self._link.groups:
            notes += await self._look_after_group(group)
        self._notes = tuple(notes)
        self._forget()
        records = [r for r in self._link.topics if self._is_due(r, only)]
        for at in range(0, len(records), _AT_ONCE):
            some = records[at : at + _AT_ONCE]
            seen = await self._see([record.topic for record in some])
            for record in some:
                await self._look_after(record, seen[record.topic])

    def _forget(self) -> None:
        """Drop the facts about topics and groups that the link no longer has."""
        topics = {record.topic: record.since_ms for record in self._link.topics}
        self._groups &= {record.group for record in self._link.groups}
        self._missed = {key: at for key, at in self._missed.items() if topics.get(key[0]) == key[1]}
        self._troubled &= topics.keys()
        for known in (self._reports, self._grown):
            for topic in known.keys() - topics.keys():
                del known[topic]

    def _is_due(self, record: TopicRecord, only: Collection[str] | None) -> bool:
        if record.phase is TopicPhase.PROMOTE_PENDING:  # rule C
            report = self._reports.get(record.topic)
            return report is None or report.since_ms != record.since_ms or bool(report.problem)
        return record.phase is TopicPhase.MIRRORING and (only is None or record.topic in only)

    async def _see(self, topics: Sequence[str]) -> dict[str, _Seen]:
        source = (await self._link.source.refresh(topics)).topics
        target = (await self._link.target.refresh(topics)).topics
        both = [topic for topic in topics if topic in source and topic in target]
        ours = await self._link.source_admin.topic_config_outcomes(both)
        theirs = await self._link.target_admin.topic_config_outcomes(both)
        defaults: Mapping[str, str] | KmigrateError
        try:
            defaults = await broker_defaults(self._link.target, self._link.target_admin)
        except KmigrateError as error:
            defaults = error
        return {t: _Seen(source.get(t), target.get(t), ours.get(t, {}), theirs.get(t, {}), defaults) for t in topics}

    async def _pick_up(self, link: LinkRecord) -> list[str]:
        """Return notes on names that cannot be picked up, or the reason why new names cannot be read (rule D)."""
        try:
            return [*await self._pickup.look(link)]
        except StateLogBroken:
            raise
        except KmigrateError as error:
            return [error.summary]

    async def _look_after_group(self, record: GroupRecord) -> list[str]:
        """Apply the ACLs of a group (rule D); return the failures, which the next round tries again."""
        self._groups.add(record.group)
        if record.phase is not GroupPhase.MIRRORED:
            return []
        self.working.add(record.key)
        try:
            await self._access.follow_group(record, self._write)
        except _OvertakenError:
            return []
        except StateLogBroken:
            raise
        except KmigrateError as error:
            return [f"{error.ref}: group {record.group}: {error.what}"]
        finally:
            self.working.discard(record.key)
        return []

    # one topic

    async def _look_after(self, record: TopicRecord, seen: _Seen) -> None:
        if not self._may_act():
            return
        problem, gone_s = "", None
        self.working.add(record.key)
        try:
            gone_s = await self._gone_for(record, seen)
            await self._follow(record, seen)
        except _OvertakenError:
            return
        except StateLogBroken:
            raise
        except KmigrateError as error:
            problem = error.summary
        finally:
            self.working.discard(record.key)
        self._reports[record.topic] = Upkept(record.since_ms, problem, gone_s)
        self._troubled.discard(record.topic)
        if problem:
            self._troubled.add(record.topic)

    async def _gone_for(self, record: TopicRecord, seen: _Seen) -> float | None:
        """Return the seconds since the topic was first found gone on the source; None if the topic is there.

        `topic forget` waits out the delivery timeout: until then a producer may repeat its last, unanswered write.
        """
        key = record.topic, record.since_ms
        if seen.source is not None or await self._link.source.find_topic(record.topic) is not None:
            self._missed.pop(key, None)
            return None
        return monotonic() - self._missed.setdefault(key, monotonic())

    async def _follow(self, record: TopicRecord, seen: _Seen) -> None:
        source, target = seen.source, seen.target
        if source is None or target is None:
            raise self._gone(record, self._link.source if source is None else self._link.target)
        if source.is_other_than(record.source_topic_id) or target.is_other_than(record.target_topic_id):
            return  # the copier stops such partitions by name; the target does not follow another topic
        if not source.partitions or not target.partitions:
            raise Unreachable("no-partitions", f"the partitions of {record.topic} cannot be read now")
        record = await self._follow_partitions(record, len(source.partitions), len(target.partitions))
        record = await self._follow_configs(record, seen, len(target.partitions[0].replicas))
        await self._access.follow_topic(record, self._write)

    def _gone(self, record: TopicRecord, cluster: ClusterClient) -> Refused:
        side = "source" if cluster is self._link.source else "target"
        return Refused(
            f"{side}-topic-gone",
            f"topic {record.topic} was deleted on the {side} {cluster.settings.name}",
            still_true="its record stays, and nothing is deleted by it on the other cluster",
        )

    async def _write(self, record: Kept, changed: Kept) -> Kept:
        """Replace `record` unless it has changed; check even an equal record, because the cluster follows it."""
        state = self._link.state
        if changed != record:
            state = await self._link.log.append(
                lambda state: changed if state.records.get(record.key) == record else None
            )
        if state.records.get(record.key) != changed or not self._may_act():
            raise _OvertakenError
        return changed

    async def _follow_partitions(self, record: TopicRecord, ours: int, theirs: int) -> TopicRecord:
        """Create partitions that the source has gained (rule A), to be mirrored from their first record."""
        if theirs > ours:
            raise Refused(
                "target-has-more-partitions",
                f"topic {record.topic} has {theirs} partitions on the target and {ours} on the source",
                still_true="the source's partitions go on being copied",
                next_step="give the source's topic as many: records of one key would go to different partitions",
            )
        if ours <= record.partitions:
            return record
        record = await self._write(record, record)  # a promoted topic no longer grows with the source
        starts = await offsets_of(self._link.source, record.topic, range(record.partitions, ours), EARLIEST)
        filled = () if record.mapped else tuple(partition for partition, start in starts.items() if start)
        record = await self._write(record, replace(record, aligning=filled))
        if filled:  # before the partitions are created: clients see them from then on
            await wait_hidden(self._link.log, record.topic, self._link.state.epoch)
        if theirs < ours:
            await self._link.target_admin.create_partitions(record.topic, ours)
        await self._leaders(record.topic, ours)
        on_target = dict.fromkeys(starts, 0) if record.mapped else {}
        if not record.mapped:
            await self._aligner.align(replace(record, starts=starts))
        wider = replace(
            record,
            partitions=ours,
            starts={**record.starts, **starts},
            began={**record.began, **starts},
            target_starts={**record.target_starts, **on_target},
            aligning=(),
        )
        return await self._write(record, wider)

    async def _leaders(self, topic: str, partitions: int) -> None:
        deadline = monotonic() + _LEADERS_S
        while True:
            info = await self._link.target.topic(topic)
            found = info.partitions.values() if info is not None else ()
            if len(found) >= partitions and all(part.leader >= 0 for part in found):
                return
            if monotonic() > deadline:
                raise Unreachable("no-leader", f"the new partitions of {topic} on the target get no leaders")
            await sleep(0.02)

    async def _with_cleaner(self, record: TopicRecord, compacted: bool) -> TopicRecord:
        """Note in the record whether a log cleaner works on the source, and the log ends when the cleaning stopped."""
        if compacted == record.compacted:
            return record
        cleaned_to = record.cleaned_to
        if not compacted:  # the ends are read after the policy: nothing written from now on is cleaned
            keys = [(record.topic, partition) for partition in range(record.partitions)]
            ends = await self._link.source.log_ends(keys)
            if any(end.error for end in ends.values()):
                return record  # there is another round
            cleaned_to = {partition: end.offset for (_, partition), end in ends.items()}
        return replace(record, compacted=compacted, cleaned_to=cleaned_to)

    async def _follow_configs(self, record: TopicRecord, seen: _Seen, replicas: int) -> TopicRecord:
        ours, theirs, defaults = seen.source_configs, seen.target_configs, seen.target_defaults
        noted = record
        if not isinstance(ours, KmigrateError) and "cleanup.policy" in ours:
            noted = await self._with_cleaner(record, is_compacted(ours))
        if any(record.target_starts.values()):  # a target topic with data from before the mirror keeps its own configs
            return await self._write(record, noted) if noted != record else record
        if isinstance(ours, KmigrateError):
            raise ours
        if isinstance(theirs, KmigrateError):
            raise theirs
        if isinstance(defaults, KmigrateError):
            raise defaults
        configs = self._maker.configs(ours, defaults, replicas, theirs, record.restore_configs, record.seal)
        changed = replace(noted, restore_configs=configs.restore, drop_configs=configs.drop)
        record = await self._write(record, changed)
        put, remove = self._maker.changes(configs, theirs)
        await self._link.target_admin.alter_topic_configs(record.topic, put, remove)
        if put or remove:
            await self._put_back_late(record)
        return record

    async def _put_back_late(self, record: TopicRecord) -> None:
        """Restore the configs of a topic that was promoted or forgotten while this round changed its configs.

        The controller may have delayed the change until another process led, and nobody would look again.
        """
        state = await self._link.log.read_to_end()
        now = state.topic(self._link.name, record.topic)
        if now is None or now.at_target:
            last = state.topic(self._link.name, record.topic, forgotten=True) or record
            await self._link.target_admin.alter_topic_configs(record.topic, last.restore_configs, last.drop_configs)
            raise _OvertakenError


def _is_pending(record: TopicRecord) -> bool:
    return record.phase is TopicPhase.PROMOTE_PENDING


def _patterns(link: LinkRecord) -> object:
    return link.topic_patterns, link.group_patterns
