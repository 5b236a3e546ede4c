"""`link finish`: clients leave the routers without a restart; guards, record, and the wait for the last client.

These conditions must hold before a client may write to a broker of the target without a router in between:

a. Nothing of the link is forwarded, held or unsettled: topics and groups are promoted, and all routers know so.
b. No write from before a flip can be sent again. The gate tells such a repetition from a first write, and a broker
   cannot (B3, B7). A producer gives up within its delivery timeout, so waiting that long after the last flip is enough.
c. Every producer's sequences at the target are the producer's own. They are while a route has generation 0. After a
   rollback the target knows producers under translated ids. A producer that wrote there before, too, has to restart.
d. The clients' protocol and logins work at the target, too: the protocol is the same, the target judges the logins.
e. No member of a promoted group is on the source: nobody names such a member any more after the finish.
f. The source took nothing after a flip that the target lacks: nobody looks there any more afterwards.
g. The clients' bootstrap addresses lead to something that stays, or the plan warns that they do not.
h. No topic is copied back to the source any more: the finish ends each way back first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kmigrate.cluster.client import PRODUCER_EXPIRATION, ProducerState
from kmigrate.errors import KmigrateError, WaitTimedOut
from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.records import LinkRecord, RouterRecord, TopicRecord
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.model.routes import DIRECT_LIMIT, finished, written_shift
from kmigrate.model.state import State
from kmigrate.model.words import advised, as_words
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.workflow.base.bootstraps import Bootstrap, ask_bootstraps, bootstrap_findings
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.control_markers import marker_findings
from kmigrate.workflow.base.plan import Finding, Plan, changed_meanwhile, ok, refuse, warn, write_each
from kmigrate.workflow.base.producer_expiration import put_back_after_finish, raised_alone
from kmigrate.workflow.groups.misplaced import promoted_group_findings
from kmigrate.workflow.promote.late_findings import late_of
from kmigrate.workflow.verbs.late import late_findings, late_guards
from kmigrate.workflow.verbs.links import resolve_link, retries, unpromoted
from kmigrate.workflow.verbs.proposal import Proposal, propose, refuse_if
from kmigrate.workflow.verbs.way_back import ending, open_way_backs

__all__ = ["FinishProposal", "Left", "SayLeft", "finish_link", "left_behind", "undo_finish", "wait_left"]

_MOST_IDS = 5
"""Maximum number of producer ids that a finding names."""
_LATELY_MS = 15 * 60 * 1000
"""Age up to which a write shows that its producer may still run."""
_QUIET_S = 2.0
"""Seconds without any connection until all clients count as gone: a client sent away may come once more to ask."""


@dataclass(frozen=True, slots=True)
class Left:
    """The clients that are still connected to routers: clients with connections to brokers' listeners first."""

    on_brokers: int
    clients: tuple[ConnectedClient, ...]
    silent: tuple[str, ...]
    """Routers that have not reported that they know of the finish."""

    @property
    def named(self) -> list[str]:
        return [client.text for client in self.clients if client.brokers]


SayLeft = Callable[[Left], None]


@dataclass(frozen=True, slots=True)
class FinishProposal(Proposal):
    """The proposal to finish a link, and what answers at the bootstrap addresses that clients hold."""

    bootstraps: tuple[Bootstrap, ...] = ()


async def finish_link(
    connections: Connections,
    name: str | None,
    bootstraps: Sequence[str],
    delivery_timeout_s: float,
    *,
    clients_known: bool = False,
    accept_misplaced: bool = False,
    accept_late: bool = False,
    accept_restarts: bool = False,
) -> FinishProposal:
    """Propose that the link is finished.

    A person may say that the target knows logins judged by routers (`clients_known`), that members on the source do no
    harm (`accept_misplaced`), that the target needs no record taken after a flip (`accept_late`), and that the
    producers of topics that were rolled back are restarted after the finish (`accept_restarts`).
    """
    state = connections.log.state
    link = resolve_link(state, name)
    asked = await ask_bootstraps(connections.target, bootstraps or [router.bootstrap for router in state.routers()])
    brokers = sorted(connections.target.metadata.brokers.values())
    found = bootstrap_findings(asked, brokers)
    if not asked:
        found.append(
            warn(
                "no-bootstrap-known",
                "no router is registered, so the addresses that clients hold are not known",
                "give them: --bootstrap HOST:PORT,...",
            )
        )
    if link.finished_ms:
        refuse_if("link finish", *_shared_addresses(state))  # the link's clients stay as long as that is so
        done = ok("already-finished", f"link {link.name} is finished already")
        return FinishProposal(Plan.of("link finish", [], [done, *found]), _nothing, tuple(asked))
    guards = _link_guards(state, link, delivery_timeout_s, connections.log.now_ms())
    guards += await late_guards(connections, link, accepted=accept_late)
    guards += _router_guards(connections, state, clients_known=clients_known)
    guards += await _member_guards(connections, link, accepted=accept_misplaced)
    guards += await _translated_ids(connections, link, accepted=accept_restarts)
    way_backs = open_way_backs(state, link.name)
    guards += [_ends_way_back(record) for record in way_backs]
    guards += await _beyond_the_copy(connections, link, way_backs, accepted=accept_late)
    found = [*guards, *found, *await _time_findings(connections, link)]
    addresses = ", ".join(f"{host}:{port}" for host, port in brokers)
    endings = ending(connections.log, way_backs, "ended by link finish")
    changes = [
        *(change for change, _ in endings),
        f"routers advertise the target's own addresses: {addresses}",
        "routers end the connections to their broker listeners in turn; their bootstrap listeners go on answering",
    ]
    if raised_alone(state, link):
        changes.append(f"put {PRODUCER_EXPIRATION} of the target back to {link.restore_expiration or 'its default'}")
    plan = Plan.of("link finish", changes, found)
    plan.refuse()

    def decide(now: State) -> LinkRecord | None:
        current = resolve_link(now, link.name)
        if current.finished_ms:
            return None
        # Somebody may have mirrored another topic since the guards looked, or started another process.
        found = _link_guards(now, current, delivery_timeout_s, connections.log.now_ms()) + _shared_addresses(now)
        late = (each for record in now.topics(link.name) for each in late_of(now, record, {}))
        found += late_findings(link.name, late, accepted=accept_late)
        refuse_if("link finish", *found)
        if still := open_way_backs(now, link.name):
            raise changed_meanwhile(f"topic {still[0].topic}")
        return replace(current, finished_ms=now_ms())

    async def act() -> Iterable[Finding]:
        await write_each(connections.log, endings)
        await connections.log.append(decide)
        return await put_back_after_finish(connections, link)

    return FinishProposal(plan, act, tuple(asked))


async def _nothing() -> Iterable[Finding]:
    return ()


async def _time_findings(connections: Connections, link: LinkRecord) -> list[Finding]:
    """Return what is different at the target itself in copies with control markers."""
    topics = connections.log.state.topics(link.name)
    return await marker_findings(connections.target, connections.target_admin, link, topics, finish=True)


def _link_guards(state: State, link: LinkRecord, delivery_timeout_s: float, now: int) -> list[Finding]:
    """Return the findings of conditions (a), (b) and (c) from the state log."""
    topics = state.topics(link.name)
    found = unpromoted(state, link.name)
    if not topics and not state.groups(link.name):
        found.append(refuse("nothing-mirrored", f"link {link.name} has mirrored nothing", "kmigrate status"))
    if not found:
        found += retries(state, link.name, delivery_timeout_s, now)
    others = [other for other in state.links() if other.name != link.name and not is_rehearsal(other.name)]
    waiting = [other.name for other in others if not other.finished_ms]
    used = {topic.link for topic in state.topics(forgotten=True)}
    used |= {group.link for group in state.groups(forgotten=True)}
    found += [
        warn(
            "other-link",
            f"link {name} is not finished: until it is, routers go on advertising their own addresses, because an "
            "address is a broker's and not a topic's",
            f"kmigrate link finish {name}",
        )
        for name in waiting
        if name in used
    ]
    if link.topic_patterns or link.group_patterns:
        found.append(warn("patterns-rest", f"names that appear on {link.source.name} from now on are not picked up"))
    return found


def _ends_way_back(record: TopicRecord) -> Finding:
    what = f"topic {record.topic} cannot be rolled back any more: the finish ends the copy to the source"
    return warn("way-back-ends", what, f"before: {advised('rollback', record.link, record.topic)}, where wanted")


async def _beyond_the_copy(
    connections: Connections, link: LinkRecord, records: Sequence[TopicRecord], *, accepted: bool
) -> list[Finding]:
    """Refuse where the source has a longer log than the target: its last records are no copies (condition f).

    The mirror finds such a record within seconds, and ends the way back. Nobody looks any more after the finish.
    """
    keys = [key for record in records for key in record.topic_partitions]
    if not keys:
        return []
    source, _ = await connections.source(link)
    copied = await source.log_ends(keys)
    written = await connections.target.log_ends(keys)
    return [
        Finding(
            "warn" if accepted else "refuse",
            "late-writes-accepted" if accepted else "late-writes",
            f"{topic}-{partition}: the source took offsets {written[topic, partition].offset:,} to "
            f"{end.offset - 1:,} after the flip, which the target does not have",
            f"stop that producer; kmigrate topic show {as_words(topic)} names its id within seconds",
        )
        for (topic, partition), end in copied.items()
        if not end.error and not written[topic, partition].error and end.offset > written[topic, partition].offset
    ]


async def _translated_ids(connections: Connections, link: LinkRecord, *, accepted: bool) -> list[Finding]:
    """Refuse while a producer writes under a translated id that the target also knows untranslated (condition c).

    The target takes any first sequence of an id that a partition does not know. A partition that knows the id from
    before the first rollback would refuse the producer's next batch.
    """
    topics = [topic for topic in connections.log.state.topics(link.name) if topic.generation]
    keys = [key for topic in topics for key in topic.topic_partitions]
    described = await connections.target.describe_producers(keys) if keys else {}
    since = connections.log.now_ms() - _LATELY_MS
    found: list[Finding] = []
    for topic in topics:
        known = {key: producers for key, (_, producers) in described.items() if key[0] == topic.topic}
        twice = _known_twice(written_shift(link, topic), known)
        if not twice:
            continue
        lately = any(last >= since for last in twice.values())
        ids = ", ".join(map(str, sorted(twice)[:_MOST_IDS]))
        more = f" and {len(twice) - _MOST_IDS} more" if len(twice) > _MOST_IDS else ""
        found.append(
            Finding(
                "refuse" if lately and not accepted else "warn",
                "former-ids",
                f"topic {topic.topic} was rolled back: the target would refuse the next batch of producer id "
                f"{ids}{more}, whose newest batches it knows under a translated id",
                "restart that producer with the router's address: it gets a new id; where it has restarted since, or "
                "restarts right after the finish: --accept-restarts",
            )
        )
    return found


def _known_twice(shift: int, described: Mapping[tuple[str, int], Iterable[ProducerState]]) -> dict[int, int]:
    """Return the clients' ids that a partition knows translated and untranslated, with the time of the last batch."""
    found: dict[int, int] = {}
    for producers in described.values():
        states = {state.producer_id: state for state in producers}
        for producer_id, state in states.items():
            client_id = producer_id - shift
            if 0 <= client_id < DIRECT_LIMIT and client_id in states:
                found[client_id] = max(state.last_timestamp, found.get(client_id, 0))
    return found


async def _member_guards(connections: Connections, link: LinkRecord, *, accepted: bool) -> list[Finding]:
    """Return the findings for promoted groups with members on the source; nobody watches these after the finish."""
    try:
        source, _ = await connections.source(link)
    except KmigrateError as error:
        what = f"whether promoted groups have members on the source could not be asked: {error.what}"
        return [warn("members-unknown", what, error.next_step)]
    verb = f"kmigrate link finish {link.name}"
    return await promoted_group_findings(connections, link, source, accepted=accepted, verb=verb)


def _router_guards(connections: Connections, state: State, *, clients_known: bool) -> list[Finding]:
    """Return the findings of conditions (a) and (d) from the routers' reports."""
    alive = {presence.instance: presence for presence in connections.log.alive(RouterPresence)}
    protocol = connections.target.settings.security.protocol
    judged = (_router_guard(each, alive.get(each.instance), protocol, clients_known) for each in state.routers())
    return [*filter(None, judged), *_shared_addresses(state)]


def _router_guard(
    router: RouterRecord, report: RouterPresence | None, protocol: str, clients_known: bool
) -> Finding | None:
    name = router.name
    if report is None:
        remedy = f"start it again, or: kmigrate router forget {name}"
        return refuse("router-silent", f"router {name} on {router.host} is silent", remedy)
    if report.protocol != protocol:
        return refuse(
            "protocol-differs",
            f"clients speak {report.protocol} to router {name}, and would have to speak {protocol} to the addresses "
            "that metadata would name",
            f"let the target's configuration name the listener that is meant for clients ({report.protocol}), and "
            "start the routers again",
        )
    if report.maps_clients:
        what = f"router {name} knows clients by a table of its own: the target may not know their credentials"
        remedy = "make these credentials or certificates known to the target, and say so: --clients-known"
        return Finding("warn" if clients_known else "refuse", "clients-mapped", what, remedy)
    return None


def _shared_addresses(state: State) -> list[Finding]:
    """Refuse routers at a shared address: a client may be connected to several, and each knows only its own answers."""
    names: dict[str, list[str]] = {}
    for router in state.routers():
        names.setdefault(router.bootstrap, []).append(router.name)
    return [
        refuse(
            "address-shared",
            f"routers {', '.join(sorted(sharing))} are reached at the same address, {address}: a client has "
            "connections to several of them, and none knows when all that it wrote is answered",
            "leave one of them: with --workers start it again with one worker, which no client notices",
        )
        for address, sharing in sorted(names.items())
        if len(sharing) > 1
    ]


async def undo_finish(connections: Connections, name: str | None) -> Proposal:
    """Propose to take the finish back: routers advertise their own addresses again."""
    link = resolve_link(connections.log.state, name)
    if not link.finished_ms:
        return propose(connections.log, "link finish", [ok("not-finished", f"link {link.name} is not finished")])
    found = [
        ok(
            "left-stay-left",
            "clients that have left stay at the target's brokers until they start again: all is promoted, so it is "
            "the same log",
        )
    ]
    if not connections.log.alive(RouterPresence):
        found.append(refuse("no-router", "no router runs that could take clients back", "kmigrate router run"))

    def decide(state: State) -> LinkRecord | None:
        current = resolve_link(state, link.name)
        return replace(current, finished_ms=0) if current.finished_ms else None

    change = "routers advertise their own addresses again, and end no connection"
    return propose(connections.log, "link finish", found, [(change, decide)])


def left_behind(connections: Connections, epoch: int) -> Left:
    """Return the clients connected now, by the newest reports; silent routers have not applied the log to `epoch`."""
    state = connections.log.state
    names = {router.instance: router.name for router in state.routers()}
    reports = [report for report in connections.log.alive(RouterPresence) if report.instance in names]
    heard = {report.instance for report in reports if report.applied >= epoch}
    return Left(
        sum(report.on_brokers for report in reports),
        tuple(client for report in reports for client in report.clients),
        tuple(sorted(name for instance, name in names.items() if instance not in heard)),
    )


async def wait_left(connections: Connections, name: str, timeout: float, say: SayLeft) -> None:
    """Wait until no client is connected to a broker's listener of any router."""
    if not finished(connections.log.state):
        return  # another link keeps all clients (`other-link`)
    deadline, quiet, epoch = monotonic() + timeout, 0.0, connections.log.state.epoch
    while True:
        left, now = left_behind(connections, epoch), monotonic()
        say(left)
        if left.on_brokers or left.silent:
            quiet = 0.0
        else:
            quiet = quiet or now
            if now - quiet >= _QUIET_S:
                return
        if now >= deadline:
            raise _still_here(name, left, timeout)
        await connections.log.changed(min(deadline - now, _QUIET_S))


def _still_here(name: str, left: Left, timeout: float) -> WaitTimedOut:
    if left.silent:
        what = f"router {', '.join(left.silent)} has not reported within {timeout:g} s that it knows of the finish"
    else:
        what = f"after {timeout:g} s {left.on_brokers} connections to routers are left: {'; '.join(left.named)}"
    return WaitTimedOut(
        "clients-left",
        what,
        still_true="the link stays finished: routers serve the remaining clients, and go on ending connections",
        next_step=f"look at these clients; kmigrate link finish {name} waits again, with --undo routers keep them",
    )
