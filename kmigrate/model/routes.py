"""Derives the routing table from the state: one immutable value with one epoch, swapped at once.

By topic, a router counts requests that have left for a source and are not resolved. Once its newest table says hold,
the count only falls; 0 proves the fence: nothing that an older table decided is in flight.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from kmigrate.model.coupling import commits_in_transactions
from kmigrate.model.lifecycle import ROLLBACK_BEHIND_FENCE, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import (
    BarrierRecord,
    GroupRecord,
    LinkRecord,
    ProducerMark,
    TopicRecord,
    TransactionRecord,
    group_key,
    topic_key,
)
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.model.state import State

__all__ = [
    "DIRECT_LIMIT",
    "GroupRoute",
    "Routes",
    "RoutingTable",
    "Serve",
    "TopicRoute",
    "WriteEra",
    "finished",
    "id_shift",
    "newest_gate",
    "next_table",
    "routing_table",
    "written_shift",
]

DIRECT_LIMIT = 1 << 40
"""Limit below which clusters allocate producer ids: a batch with such an id came through no router."""
_GENERATION_BITS = 6


class Serve(Enum):
    """A router's treatment of a topic's Produce requests."""

    HIDDEN = "hidden"
    """Hide the topic while it is aligning: metadata says LEADER_NOT_AVAILABLE, so that nobody reads fillers."""
    FORWARD = "forward"
    """Forward the request to the source's leader, with translated producer ids."""
    HOLD = "hold"
    """Hold the request until a newer record says forward or local."""
    LOCAL = "local"
    """Send the request to the target; the gate watches first writes of each producer."""


_SERVE = {
    TopicPhase.INITIALISING: Serve.HIDDEN,
    TopicPhase.ALIGNING: Serve.HIDDEN,
    TopicPhase.MIRRORING: Serve.FORWARD,
    TopicPhase.PROMOTE_PENDING: Serve.FORWARD,
    TopicPhase.FENCING: Serve.HOLD,
    TopicPhase.FENCED: Serve.HOLD,
    TopicPhase.PROMOTED: Serve.LOCAL,
    TopicPhase.ROLLBACK_PENDING: Serve.LOCAL,
    TopicPhase.ROLLBACK_FENCING: Serve.HOLD,
    TopicPhase.ROLLBACK_FENCED: Serve.HOLD,
}


def id_shift(target_cluster_id: str, link_uuid: str, generation: int) -> int:
    """Return the number added to a client's producer id on the way to the source: 2^40 · g, g of 22 bits and never 0.

    g consists of 16 bits of a hash over target cluster and link, and 6 bits of route generation. So g needs no table,
    survives router crashes and is the same in every router (M5).
    """
    digest = hashlib.sha256(f"{target_cluster_id}/{link_uuid}".encode()).digest()
    block = int.from_bytes(digest[:2]) or 1
    return (block << _GENERATION_BITS | generation % (1 << _GENERATION_BITS)) << 40


class WriteEra(NamedTuple):
    """The time of a topic between two flips: the cluster that takes the writes, and the shift of producer ids there."""

    at_target: bool
    shift: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of a topic that is mirrored, or was mirrored until its promote."""

    key: str
    link: str
    topic: str
    serve: Serve
    shift: int
    """Number added to producer ids on the way to the source."""
    fence_epoch: int
    """Epoch of the topic's newest fence; −1 before the first fence."""
    partitions: int
    gate: Mapping[int, tuple[ProducerMark, ...]]
    """Producers that the other cluster holds below the newest barrier, by partition.

    Empty before the first promote. After a promote the source has these producers, after a rollback the target.
    """
    target_id: str = ""
    """The topic's id at the target; '' if the target topic does not exist yet."""
    source_id: str = ""
    """The topic's id at the source; '' if the source reports none."""
    sealed: bool = False
    """True if the source broker refuses every write: a batch that it calls too large need not be too large."""
    mapped: bool = False
    """True if offsets differ between the clusters."""
    own_configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own values of configs that have other values at the target until the promote."""
    aligning: frozenset[int] = frozenset()
    """Partitions that were added later and are not aligned yet: nobody reads them."""
    starts: Mapping[int, int] = field(default_factory=dict)
    """First mirrored offset by partition."""
    barrier: Mapping[int, int] = field(default_factory=dict)
    """End of the copy, by partition of a promoted topic."""
    rolling_back: bool = False
    """True while the fence of a rollback holds writes."""
    target_shift: int = 0
    """Number added to producer ids on the way to the target; 0 before the topic's first rollback."""
    copied_back: bool = False
    """True if the topic can be rolled back: routers count the writes to the target that are not resolved."""
    former_eras: tuple[WriteEra, ...] = ()
    """The two eras before the present era, newest first: a batch that comes again may have been stored then."""
    closing: bool = False
    """True shortly before a fence: no transaction begins on the topic, and open ones end."""
    turned_epoch: int = -1
    """Epoch of the newest flip, from the topic's first rollback on; −1 before."""

    def outdates(self, known: TransactionRecord) -> bool:
        """Return whether a transactional identity may have written the topic before the newest flip.

        The log that is written now knows other sequences of such an identity. So the holder needs a new epoch. An id
        that the source does not know has written at the target alone, whose log knows all its sequences.
        """
        return known.at_source and known.since < self.turned_epoch

    @property
    def era(self) -> WriteEra:
        """The present era: no log sees the same producer id in two eras."""
        return WriteEra(True, self.target_shift) if self.at_target else WriteEra(False, self.shift)

    @property
    def at_target(self) -> bool:
        """True from the flip of a promote to the flip of a rollback: the newest records are at the target."""
        return self.serve is Serve.LOCAL or self.rolling_back

    @property
    def reads_copy(self) -> bool:
        """True if readers get the target's copy, which may be behind the source."""
        return not self.at_target and self.serve is not Serve.HIDDEN

    @property
    def fenced(self) -> bool:
        """True if routers report what they still wait for in the topic: held, sealed, or closing."""
        return self.serve is Serve.HOLD or self.sealed or self.closing


@dataclass(frozen=True, slots=True)
class GroupRoute:
    """The route of a group that follows: members belong to the source's group until the promote opens the target's.

    A group that is rolled back has such a route, too, whatever its mode: its members leave the target's group.
    """

    link: str
    gathering: bool = False
    """True during a promote or rollback: the members must give up all partitions and join anew."""
    frozen: bool = False
    """True if no request of the group goes to the cluster that the group leaves."""
    in_transactions: bool = False
    """True during the promote or rollback of a group whose positions are committed in transactions."""
    at_target: bool = False
    """True during a rollback: the group's coordinator is the target's."""

    @property
    def rejoining(self) -> bool:
        """True if members of the classic protocol must join anew, and the router holds their joins.

        A group that commits in transactions rejoins once it is frozen: Kafka Streams commits nothing while it waits for
        a join, so its transaction would stay open. Uncommitted work of such members is aborted with their transactions.
        """
        return self.gathering and (self.frozen or not self.in_transactions)


class Routes(dict[str, TopicRoute]):
    """Routes of topics by name, an immutable value: `replaced` makes the next value.

    The next value costs a copy of the mapping; what is kept apart is not computed anew.
    """

    __slots__ = ("fenced", "hidden", "link_topics", "mirrored", "unready")

    def __init__(self, routes: Mapping[str, TopicRoute]) -> None:
        super().__init__(routes)
        self.fenced: dict[str, TopicRoute] = {}
        """Routes of topics whose unresolved forwards routers report."""
        self.unready: dict[str, TopicRoute] = {}
        """Routes of topics with partitions that nobody may read yet."""
        self.hidden: frozenset[str] = frozenset()
        """Topics that clients do not see yet; the same object until one of them changes."""
        self.mirrored: dict[str, str] = {}
        """The ids at the target of topics that are not promoted."""
        self.link_topics: Counter[str] = Counter()
        """Number of topics that are not promoted, by link."""
        if isinstance(routes, Routes):
            self.fenced, self.unready = dict(routes.fenced), dict(routes.unready)
            self.mirrored, self.link_topics = routes.mirrored, Counter(routes.link_topics)
            self.hidden = routes.hidden
            return
        for name, route in routes.items():
            self._enter(name, route)
            if (target_id := _mirrored_id(route)) is not None:
                self.mirrored[name] = target_id
        self.hidden = frozenset(name for name, route in self.unready.items() if route.serve is Serve.HIDDEN)

    def replaced(self, changes: Mapping[str, TopicRoute | None]) -> Routes:
        """Return these routes with changes; None removes a route."""
        made = Routes(self)
        ids = {name: _mirrored_id(route) for name, route in changes.items()}
        if any(self.mirrored.get(name) != target_id for name, target_id in ids.items()):
            made.mirrored = {**self.mirrored, **{name: each for name, each in ids.items() if each is not None}}
            for name in [name for name, each in ids.items() if each is None]:
                made.mirrored.pop(name, None)
        for name, route in changes.items():
            made._leave(name)
            if route is not None:
                made[name] = route  # in place: a mapping without gaps is copied at once, which is ten times as fast
                made._enter(name, route)
            else:
                made.pop(name, None)
        entered = {name for name, route in changes.items() if route is not None and route.serve is Serve.HIDDEN}
        left = self.hidden.intersection(changes) - entered
        if left or not entered <= self.hidden:
            made.hidden = (self.hidden - left) | entered
        return made

    def _leave(self, name: str) -> None:
        before = self.get(name)
        self.fenced.pop(name, None)
        self.unready.pop(name, None)
        if before is not None and not before.at_target:
            self.link_topics[before.link] -= 1

    def _enter(self, name: str, route: TopicRoute) -> None:
        if route.fenced:
            self.fenced[name] = route
        if route.serve is Serve.HIDDEN or route.aligning:
            self.unready[name] = route
        if not route.at_target:
            self.link_topics[route.link] += 1


def _mirrored_id(route: TopicRoute | None) -> str | None:
    """Return the id at the target of a topic that is not promoted; None for another topic."""
    return route.target_id if route is not None and not route.at_target else None


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The routes of topics and groups by name; a name without a route belongs to the target alone.

    A router may have routes of 10,000 topics, and a table is made at each state record. So a table shares all unchanged
    parts with the table before, and names the topics whose routes have changed.
    """

    epoch: int
    topics: Mapping[str, TopicRoute]
    held_groups: frozenset[str]
    """Groups whose members wait: mirrored and not promoted, except groups that follow and are not frozen."""
    transactions: Mapping[str, Mapping[str, TransactionRecord]] = field(default_factory=dict)
    """Identities of transactional ids on both clusters, by transactional id and link."""
    mirroring: tuple[str, ...] = ()
    """Links that have a topic which is not promoted."""
    siblings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """All links from the same source cluster, including the link itself, by link in `mirroring`."""
    finished: bool = False
    """True if clients are told the target's own addresses (`finished`)."""
    followed: Mapping[str, GroupRoute] = field(default_factory=dict)
    """Groups in follow mode that are not promoted, by name."""
    sources: tuple[str, ...] = ()
    """An unfinished link of each source cluster, also if all topics of the link are promoted."""
    since: Mapping[str, TopicRoute] | None = None
    """Routes of the table before, which `changed` counts from; None: the table was made anew."""
    changed: frozenset[str] = frozenset()
    """Topics with another route than in the table before."""

    @property
    def routes(self) -> Routes:
        """The routes of topics, with the routes that need attention kept apart."""
        return self.topics if isinstance(self.topics, Routes) else Routes(self.topics)

    def changes_since(self, routes: Mapping[str, TopicRoute]) -> frozenset[str]:
        """Return the topics whose routes may differ from these routes: all of them, but for the table before."""
        if routes is self.topics:
            return frozenset()
        return self.changed if self.since is routes else frozenset((*routes, *self.topics))

    def route_of(self, key: str) -> TopicRoute | None:
        """Return the route with this topic key."""
        route = self.topics.get(key.split("/", 2)[2])
        return route if route is not None and route.key == key else None

    def of_one_source(self, link: str) -> tuple[str, ...]:
        """Return the links from a link's source cluster, including the link itself."""
        return self.siblings.get(link, (link,))


def _route(link: LinkRecord, record: TopicRecord, state: State) -> TopicRoute:
    serve = _SERVE[record.phase]
    if record.seal is not None and serve is Serve.FORWARD:
        serve = Serve.HOLD  # a promote was given up, and the source does not take writes again yet
    shift = id_shift(link.target.cluster_id, link.uuid, record.generation)
    return TopicRoute(
        key=record.key,
        link=record.link,
        topic=record.topic,
        serve=serve,
        shift=shift,
        fence_epoch=record.newest_fence,
        partitions=record.partitions,
        gate=_gate(record, serve, state),
        target_id=record.target_topic_id,
        source_id=record.source_topic_id,
        sealed=record.seal is not None,
        mapped=record.mapped,
        own_configs={} if record.at_target else record.restore_configs,
        aligning=frozenset() if record.at_target else frozenset(record.aligning),
        starts=record.starts,
        barrier={p: each.offset for p, each in record.barrier.items()} if record.at_target else {},
        rolling_back=record.phase in ROLLBACK_BEHIND_FENCE,
        target_shift=shift if record.generation else 0,
        copied_back=record.copied_back,
        former_eras=_former_eras(link, record, shift),
        closing=_is_closing(record),
        turned_epoch=record.turned_epoch,
    )


def _is_closing(record: TopicRecord) -> bool:
    if record.phase is TopicPhase.ROLLBACK_PENDING:
        return record.way_back is not None and record.way_back.closing
    return record.phase is TopicPhase.PROMOTE_PENDING and record.closing


def written_shift(link: LinkRecord, record: TopicRecord) -> int:
    """Return the number that routers add to producer ids on the way to the cluster that takes the topic's writes."""
    if record.at_target and not record.generation:
        return 0
    return id_shift(link.target.cluster_id, link.uuid, record.generation)


def _former_eras(link: LinkRecord, record: TopicRecord, shift: int) -> tuple[WriteEra, ...]:
    """Return the two eras before a topic's present era, newest first."""
    generation = record.generation
    before = id_shift(link.target.cluster_id, link.uuid, generation - 1) if generation else 0
    at_target = (WriteEra(True, before if generation > 1 else 0),) if generation else ()
    if record.at_target:
        return (WriteEra(False, shift), *at_target)
    return (*at_target, WriteEra(False, before)) if generation else ()


def _gate(record: TopicRecord, serve: Serve, state: State) -> dict[int, tuple[ProducerMark, ...]]:
    return {} if serve is Serve.HOLD else newest_gate(state, record)


def newest_gate(state: State, record: TopicRecord) -> dict[int, tuple[ProducerMark, ...]]:
    """Return the producers below the newest flip's barrier, for the gate of the cluster that takes the writes now."""
    back = not record.at_target
    if back and record.rolled_back_epoch < 0:
        return {}
    epoch = record.rolled_back_epoch if back else record.fence_epoch
    gate: dict[int, tuple[ProducerMark, ...]] = {}
    for barrier in state.barrier_chunks(record.link, record.topic, back=back):
        if barrier.fence_epoch == epoch:
            for partition, marks in barrier.producers.items():
                gate[partition] = gate.get(partition, ()) + marks
    return gate


class _Transactions(Mapping[str, Mapping[str, TransactionRecord]]):
    """The transactions of a state, looked up on demand: there may be 100,000 ids, and each change makes a table."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._links = tuple(link.name for link in state.links())

    def __getitem__(self, name: str) -> Mapping[str, TransactionRecord]:
        found = {link: known for link in self._links if (known := self._state.transaction(link, name)) is not None}
        if not found:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(each.name for each in self._state.transactions() if each.link in self._links))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _group_route(state: State, record: GroupRecord) -> GroupRoute:
    back = record.phase is GroupPhase.ROLLING_BACK
    gathering = record.gathering if back else record.phase is GroupPhase.PROMOTING
    # Searched only while members join anew: see `_Transactions`.
    in_transactions = gathering and commits_in_transactions(state.transactions(record.link), record.group)
    return GroupRoute(record.link, gathering, record.frozen, in_transactions, back)


def finished(state: State) -> bool:
    """Return whether clients leave the routers: all links that mirrored anything are finished, and nothing is mirrored.

    A client takes all its topics to a broker's real address, so a single link that needs the routers keeps all clients.
    Links of rehearsals do not count.
    """
    if not any(link.finished_ms for link in state.links()):
        return False
    unfinished = [link.name for link in state.links() if not (link.finished_ms or is_rehearsal(link.name))]
    mirrored = (prefix for link in unfinished for prefix in (topic_key(link, ""), group_key(link, "")))
    if any(next(state.records.below(prefix), None) is not None for prefix in mirrored):
        return False
    return not (state.has_topic_that(_topic_needs_routers) or state.has_group_that(_group_needs_routers))


def _topic_needs_routers(record: TopicRecord) -> bool:
    return record.phase is not TopicPhase.PROMOTED and not is_rehearsal(record.link)


def _group_needs_routers(record: GroupRecord) -> bool:
    return record.phase is not GroupPhase.PROMOTED and not is_rehearsal(record.link)


def routing_table(state: State) -> RoutingTable:
    """Return the table that a state implies."""
    waiting = [r for r in state.groups(forgotten=True) if r.phase is not GroupPhase.PROMOTED]
    held = frozenset(r.group for r in waiting if _is_held(r))
    followed = {r.group: _group_route(state, r) for r in waiting if _is_followed(r)}
    return _table(state, _topics(state), held, followed)


def next_table(state: State, before: State, table: RoutingTable) -> RoutingTable:
    """Return a state's table; keep unchanged routes: thousands of topics anew would stop clients for tens of ms."""
    old, new = before.records, state.records
    if new.changed_since(old, "link"):
        return routing_table(state)
    names: set[str] = set()
    for kind in ("topic", "barrier"):
        for key, record in new.changed_since(old, kind).items():
            known = record if record is not None else old.get(key)
            if isinstance(known, (TopicRecord, BarrierRecord)):
                names.add(known.topic)
    routes = table.routes.replaced(_routes(state, names)) if names else table.routes
    held, followed = _groups(state, before, table)
    return replace(_table(state, routes, held, followed), since=table.topics, changed=frozenset(names))


def _topics(state: State) -> Routes:
    topics: dict[str, TopicRoute] = {}
    for record in state.topics(forgotten=True):
        link = state.link(record.link)
        if link is not None:
            topics[record.topic] = _route(link, record, state)
    return Routes(topics)


def _routes(state: State, names: Iterable[str]) -> dict[str, TopicRoute | None]:
    """Return the routes of some names, None for a name without a route.

    If two links have a record of a topic (a link keeps a forgotten topic's), the greatest key wins, as in a new table.
    """
    made: dict[str, TopicRoute | None] = dict.fromkeys(names)
    for link in sorted(state.links(), key=lambda link: topic_key(link.name, "")):
        for name in made:
            record = state.topic(link.name, name, forgotten=True)
            if record is not None:
                made[name] = _route(link, record, state)
    return made


def _groups(state: State, before: State, table: RoutingTable) -> tuple[frozenset[str], Mapping[str, GroupRoute]]:
    """Return the held and the followed groups of the next table, with the changes since the table of `before`."""
    changed = state.records.changed_since(before.records, "group")
    known = (record if record is not None else before.records.get(key) for key, record in changed.items())
    records = [record for record in known if isinstance(record, GroupRecord)]
    names = {record.group for record in records}
    if names or state.records.changed_since(before.records, "transaction"):
        # Whether a group commits in transactions is searched while its members join anew.
        names.update(name for name, route in table.followed.items() if route.gathering)
    if not names:
        return table.held_groups, table.followed
    held, followed = set(table.held_groups - names), {k: v for k, v in table.followed.items() if k not in names}
    links = {link.name for link in state.links()} | {record.link for record in records}
    for link in sorted(links, key=lambda link: group_key(link, "")):
        for name in names:
            record = state.group(link, name, forgotten=True)
            if record is None or record.phase is GroupPhase.PROMOTED:
                continue
            if _is_held(record):
                held.add(name)
            if _is_followed(record):
                followed[name] = _group_route(state, record)
    return frozenset(held), followed


def _is_held(record: GroupRecord) -> bool:
    return record.frozen or (record.mode is GroupMode.HOLD and record.phase is not GroupPhase.ROLLING_BACK)


def _is_followed(record: GroupRecord) -> bool:
    return record.mode is GroupMode.FOLLOW or record.phase is GroupPhase.ROLLING_BACK


def _table(state: State, routes: Routes, held: frozenset[str], followed: Mapping[str, GroupRoute]) -> RoutingTable:
    mirroring = sorted(link for link, topics in routes.link_topics.items() if topics)
    return RoutingTable(
        state.epoch,
        routes,
        held,
        _Transactions(state),
        tuple(mirroring),
        _siblings(state, mirroring),
        finished(state),
        followed,
        _one_link_each(state, mirroring),
    )


def _one_link_each(state: State, mirroring: Iterable[str]) -> tuple[str, ...]:
    """Return an unfinished link of each source cluster, preferably a link that mirrors."""
    chosen: list[LinkRecord] = []
    named = set(mirroring)
    for link in sorted(state.links(), key=lambda link: link.name not in named):
        if not link.finished_ms and not any(link.source.is_same(other.source) for other in chosen):
            chosen.append(link)
    return tuple(link.name for link in chosen)


def _siblings(state: State, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    links = [link for name in names if (link := state.link(name)) is not None]
    return {link.name: tuple(other.name for other in links if other.source.is_same(link.source)) for link in links}
