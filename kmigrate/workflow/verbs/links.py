"""Verbs on links: create, delete, check, alter, and limit."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from kmigrate.cluster.brokers import advertised_faults
from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient
from kmigrate.cluster.producer_expiration import restore_memory
from kmigrate.errors import AuthenticationFailed, Failed, KmigrateError, Refused, Unreachable, UsageError
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.nearest import nearest
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import (
    SIZE_LIMIT,
    BarrierRecord,
    ClusterRef,
    GroupRecord,
    LinkRecord,
    TopicRecord,
    link_key,
)
from kmigrate.model.rehearsals import LINK_PREFIX, is_rehearsal
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan, ok, refuse, telling, warn
from kmigrate.workflow.base.producer_expiration import memory_findings, raised_alone
from kmigrate.workflow.base.running import (
    START_CONTROLLER,
    START_ROUTER,
    controller_runs,
    mirror_runs,
    no_mirror,
    start_mirror,
)
from kmigrate.workflow.promote.closing import closed_topics, reopen
from kmigrate.workflow.promote.denying import entries_of, lift
from kmigrate.workflow.verbs.access import access_findings, state_findings
from kmigrate.workflow.verbs.proposal import Noun, Proposal, propose, refuse_if

__all__ = [
    "alter_link",
    "check_link",
    "check_link_name",
    "create_link",
    "delete_link",
    "link_keys",
    "put_back_memory",
    "refuse_finished",
    "resolve_link",
    "retries",
    "stored_link",
    "throttle_link",
    "unpromoted",
]

_LONGEST_NAME = 100
"""Longest name of a link: the name stands in the key of each of the link's records."""
_NOT_IN_NAMES = frozenset("/\"'`\\$&|;<>()*?[]{}!#~")
"""Not in link names: a slash separates a key's parts; the others mean something in the shell of advised commands."""


_DEFAULTS = LinkSettings()
_LIFT_S = 10.0
"""Longest wait of `link delete` until the source lets other writers in again."""


def resolve_link(state: State, name: str | None) -> LinkRecord:
    """Return the named link, or the only link of no rehearsal where no name is given."""
    if name is not None:
        found = state.link(name)
        if found is None:
            known = ", ".join(link.name for link in state.links()) or "none"
            raise Refused(
                "unknown-link",
                f"there is no link {name}{nearest(name, (link.name for link in state.links()))}; links: {known}",
                still_true="nothing was changed",
                next_step="kmigrate link list, or kmigrate link create",
            )
        return found
    links = [link for link in state.links() if not is_rehearsal(link.name)]
    if len(links) == 1:
        return links[0]
    if not links:
        raise Refused(
            "no-link",
            "there is no link yet",
            still_true="nothing was changed",
            next_step="kmigrate link create NAME --source CLUSTER --target CLUSTER",
        )
    raise UsageError(
        "which-link",
        f"there are {len(links)} links ({', '.join(link.name for link in links)})",
        still_true="nothing was changed",
        next_step="say which one: --link NAME; kmigrate link show, check and finish take NAME itself",
    )


async def create_link(connections: Connections, name: str, source: str, settings: LinkSettings = _DEFAULTS) -> Proposal:
    """Propose to store a link with its settings; the source is not contacted."""
    check_link_name(name)
    target_settings, source_settings = connections.target.settings, connections.settings_of(source)
    state = connections.log.state
    wanted = LinkRecord(
        name,
        secrets.token_hex(8),
        ClusterRef(source, source_settings.bootstrap_servers),
        ClusterRef(target_settings.name, target_settings.bootstrap_servers, connections.target.metadata.cluster_id),
        now_ms(),
        settings=settings,
    )
    found = [warn(ref, what) for ref, what in connections.warnings]
    found += await state_findings(connections.target)
    same_name = _same_name(state, wanted)
    if same_name is not None and same_name.level != "refuse":
        return propose(connections.log, "link create", [same_name])
    found += [same_name] if same_name is not None else []
    if source_settings.overlaps(target_settings):
        found.append(
            refuse(
                "source-is-target",
                f"source {source} and target {target_settings.name} are the same cluster",
                "name two different clusters of kmigrate.toml",
            )
        )

    def decide(now: State) -> LinkRecord | None:
        # Somebody may have stored a link of that name since the guards looked.
        meanwhile = _same_name(now, wanted)
        refuse_if("link create", meanwhile)
        return wanted if meanwhile is None else None

    store = stored_link(name, source, target_settings.name, settings)
    return propose(connections.log, "link create", found, [(store, decide)])


def check_link_name(name: str) -> None:
    """Raise UsageError if a name could make keys of another link, or has characters with a meaning in a shell."""
    whole = name.isprintable() and not any(each.isspace() or each in _NOT_IN_NAMES for each in name)
    if is_rehearsal(name):
        raise UsageError(
            "bad-link-name",
            f"{name!r} is no name for a link: names that begin with {LINK_PREFIX} belong to kmigrate rehearse",
            still_true="nothing was changed",
            next_step="choose another name",
        )
    if whole and not name.startswith("-") and 0 < len(name) <= _LONGEST_NAME:
        return
    raise UsageError(
        "bad-link-name",
        f"{name!r} is no name for a link",
        still_true="nothing was changed",
        next_step=f"expected: 1 to {_LONGEST_NAME} characters, not beginning with a dash; no space, slash, or what a "
        "shell acts on",
    )


def _same_name(state: State, wanted: LinkRecord) -> Finding | None:
    """Return the finding that an existing link of the same name gives to a new link; None without such a link."""
    known = state.link(wanted.name)
    if known is None:
        return None
    if known.deleting_ms:
        return refuse("being-deleted", _deleting(known), _END_DELETE.format(known.name))
    if (known.source.name, known.target.name) == (wanted.source.name, wanted.target.name):
        return _same_link(known, wanted)
    return refuse(
        "link-exists",
        f"link {wanted.name} exists and goes from {known.source.name} to {known.target.name}",
        f"choose another name, or: kmigrate link delete {wanted.name}",
    )


def _same_link(known: LinkRecord, wanted: LinkRecord) -> Finding:
    """Return the finding on a link that exists already: its settings stay, whatever the call says."""
    ours, theirs = known.settings, wanted.settings
    kept = [f"{key} is {ours.text(key)}, not {theirs.text(key)}" for key in ours.differing(theirs)]
    if not kept:
        return ok("link-exists", f"link {wanted.name} exists already")
    return warn(
        "link-settings-differ",
        f"link {wanted.name} exists already and keeps its settings: {'; '.join(kept)}",
        f"to change a setting: kmigrate link alter {wanted.name} --set KEY=VALUE",
    )


def stored_link(name: str, source: str, target: str, settings: LinkSettings) -> str:
    """Return the creation of a link in words, with the settings that are not kmigrate's own defaults."""
    special = [f"{key}={settings.text(key)}" for key in _DEFAULTS.differing(settings)]
    return f"store link {name}: {source} → {target}" + (f", with {'; '.join(special)}" if special else "")


async def alter_link(
    connections: Connections, name: str | None, change: Callable[[LinkSettings], LinkSettings]
) -> Proposal:
    """Propose to change a link's settings; running processes follow at once, promotes under way keep their terms."""
    link = resolve_link(connections.log.state, name)
    refuse_finished(link)
    changes = [f"link {link.name}: {each}" for each in link.settings.changes_to(change(link.settings))]
    if not changes:
        found = ok("same-settings", f"link {link.name} has these settings already")
        return propose(connections.log, "link alter", [found])

    def decide(state: State) -> LinkRecord | None:
        now = resolve_link(state, link.name)
        refuse_finished(now)
        settings = change(now.settings)
        return None if settings == now.settings else replace(now, settings=settings)

    return propose(connections.log, "link alter", (), [("; ".join(changes), decide)], changes)


async def throttle_link(connections: Connections, name: str | None, rate: int) -> Proposal:
    """Propose the link's limit in bytes a second (0: none); a running mirror follows at once."""
    link = resolve_link(connections.log.state, name)
    if link.throttle == rate:
        return propose(connections.log, "link throttle", [ok("same-rate", f"link {link.name} has that limit")])

    def decide(state: State) -> LinkRecord | None:
        now = resolve_link(state, link.name)
        return None if now.throttle == rate else replace(now, throttle=rate)

    change = f"read at most {rate} bytes a second" if rate else "lift the limit"
    return propose(connections.log, "link throttle", (), [(f"{change} for link {link.name}", decide)])


async def delete_link(connections: Connections, name: str, delivery_timeout_s: float) -> Proposal:
    """Propose to forget a link and its records, and no topic; refuse while something needs the link's record."""
    link = resolve_link(connections.log.state, name)
    found = _delete_guards(connections.log.state, link, delivery_timeout_s, connections.log.now_ms())
    if connections.log.state.topics(link.name) or connections.log.state.groups(link.name):
        found.append(
            warn(
                "begins-anew",
                f"the promotes of link {link.name} are forgotten with it: a playbook that creates the link would "
                "mirror all of that anew, and hand old positions to its groups",
                "run no such playbook again",
            )
        )
    found += [
        warn(
            "way-back-ends",
            f"topic {record.topic} cannot be rolled back any more: nobody copies it to the source without the link",
            f"before: {advised('rollback', link.name, record.topic)}, where wanted",
        )
        for record in connections.log.state.topics(link.name)
        if record.copied_back
    ]
    keys = link_keys(connections.log.state, link.name)
    changes = ["pick up no more names by its expressions"] if link.topic_patterns or link.group_patterns else []
    changes += [f"forget {key}" for key in keys]
    changes += [
        f"give {record.topic} its own {SIZE_LIMIT} on {link.source.name} back: {_former(record)}"
        for record in closed_topics(connections.log.state.topics(link.name))
    ]
    changes += [
        f"let {record.denied.names} write {record.topic} at {link.source.name} again"
        for record in connections.log.state.topics(link.name)
        if record.denied is not None and record.denied.may_exist
    ]
    if raised_alone(connections.log.state, link) and not link.finished_ms:
        changes.append(f"put {PRODUCER_EXPIRATION} of the target back to {link.restore_expiration or 'its default'}")
    plan = Plan.of("link delete", changes, found)
    plan.refuse()
    return Proposal(plan, partial(_forget_link, connections, link, delivery_timeout_s))


def _former(record: TopicRecord) -> str:
    before = record.closed.before if record.closed is not None else ""
    return before or "its cluster's default"


async def _open_sources(connections: Connections, link: LinkRecord) -> list[Finding]:
    """Give closed source topics their own size limits back; name the topics that stay closed."""
    closed = closed_topics(connections.log.state.topics(link.name))
    if not closed:
        return []
    found: list[Finding] = []
    for record in closed:
        try:
            _, admin = await connections.source(link)
            await reopen(admin, record)
        except KmigrateError as error:
            what = f"{record.topic} on {link.source.name} still refuses writes: {error.what}"
            way = f"where that cluster goes on: set {SIZE_LIMIT} to {_former(record)} by hand"
            found.append(warn("source-stays-closed", what, way))
    return found


async def _let_writers_in(connections: Connections, link: LinkRecord) -> list[Finding]:
    """Delete the deny entries that kmigrate has put on the source; name those that stay."""
    records = [each for each in connections.log.state.topics(link.name) if entries_of([each])]
    if not records or await _not_lifted(connections, link, records) is None:
        return []
    found: list[Finding] = []
    for record in records:  # the failure of all does not tell which entries stay
        error = await _not_lifted(connections, link, [record])
        if error is not None and record.denied is not None and record.denied.may_exist:
            what = f"{record.denied.names} may still not write {record.topic} at {link.source.name}: {error.what}"
            way = f"where that cluster goes on: delete these ACLs by hand: {'; '.join(map(str, record.denied.entries))}"
            found.append(warn("writers-stay-denied", what, way))
    return found


async def _not_lifted(
    connections: Connections, link: LinkRecord, records: Sequence[TopicRecord]
) -> KmigrateError | None:
    """Delete the deny entries of topics; return the error that leaves some of the entries in place."""
    try:
        source, admin = await connections.source(link)
        await lift(source, admin, entries_of(records), monotonic() + _LIFT_S)
    except KmigrateError as error:
        return error
    return None


async def put_back_memory(connections: Connections, link: LinkRecord) -> None:
    """Put the target's `producer.id.expiration.ms` back to the value from before the link; raise a refusal."""
    former = link.restore_expiration or ""
    against = await restore_memory(connections.target, connections.target_admin, former)
    if against:
        raise Failed(
            "not-put-back",
            f"the target does not let {PRODUCER_EXPIRATION} be put back: {against}",
            next_step=f"set {PRODUCER_EXPIRATION}={former} as the brokers' default by hand, then repeat"
            if former
            else f"remove {PRODUCER_EXPIRATION} from the brokers' defaults by hand, then repeat",
        )


async def _forget_link(connections: Connections, link: LinkRecord, delivery_timeout_s: float) -> list[Finding]:
    """Mark the link as being deleted, drop its records in order, each judged anew; return topics that stay closed."""

    def judged(now: State) -> LinkRecord | None:
        """Return the current link, if the link is still the same; somebody may have mirrored another topic since."""
        current = now.link(link.name)
        if current is None or current.uuid != link.uuid:
            return None
        guards = _delete_guards(now, current, delivery_timeout_s, connections.log.now_ms())
        against = Plan.of("link delete", [], guards)
        against.refuse(still_true="the link stays, and nothing of what is not promoted was forgotten")
        return current

    def mark(now: State) -> LinkRecord | None:
        current = judged(now)
        if current is None or current.deleting_ms:
            return None
        return replace(current, deleting_ms=now_ms(), topic_patterns=(), group_patterns=())

    whole = _told_by(connections.log.state, link.name)
    marked, done = await connections.log.append(mark), list[str]()
    left_closed = list[Finding]()
    if marked.link(link.name) is not None:
        left_closed += [*await _open_sources(connections, link), *await _let_writers_in(connections, link)]
    try:
        with telling(done):
            await _drop_records(connections, link, marked, judged, done)
    except Refused:
        if not done:
            await connections.log.append(partial(_unmark, marked.link(link.name), link, whole))
        raise
    return left_closed


async def _drop_records(
    connections: Connections,
    link: LinkRecord,
    state: State,
    judged: Callable[[State], LinkRecord | None],
    done: list[str],
) -> None:
    """Drop the records of a link one by one, the link's own last; `done` gets each that is dropped."""
    keys: list[str] = []
    """Keys that are still to be dropped, the next key last; a search for each of very many records would take long."""

    def drop(now: State) -> tuple[str, None] | None:
        if judged(now) is None:
            return None
        while keys and keys[-1] not in now.records:
            keys.pop()
        if len(keys) <= 1:  # other processes may have written more records meanwhile
            keys[:] = reversed(link_keys(now, link.name))
        return keys[-1], None

    while (left := state.link(link.name)) is not None and left.uuid == link.uuid:
        alone = len(keys) <= 2 and link_keys(state, link.name) == [left.key]
        if alone and not left.finished_ms and raised_alone(state, left):
            # Only now: a link that stays needs the raised setting. The record, dropped next, alone knows the old value.
            await put_back_memory(connections, left)
        state = await connections.log.append(drop)
        done += [f"forget {key}" for key in keys[-1:] if key not in state.records]


def _told_by(state: State, link: str) -> set[str]:
    """Return the keys of the records that say what a link has promoted."""
    kinds = (TopicRecord, GroupRecord, BarrierRecord)
    return {key for key, record in state.records.items() if isinstance(record, kinds) and record.link == link}


def _unmark(marked: LinkRecord | None, before: LinkRecord, whole: set[str], state: State) -> LinkRecord | None:
    """Return the link without the mark of its deletion, where a guard keeps the link and no record is gone.

    Another process may have dropped a record, or changed the rest of the link's record; that change stays.
    """
    now = state.link(before.name)
    if not whole <= state.records.keys():
        return None
    if marked is None or now is None or (now.uuid, now.deleting_ms) != (marked.uuid, marked.deleting_ms):
        return None
    topics, groups = before.topic_patterns, before.group_patterns
    return replace(now, deleting_ms=before.deleting_ms, topic_patterns=topics, group_patterns=groups)


_END_DELETE = "kmigrate link delete {} ends it"


def _deleting(link: LinkRecord) -> str:
    return f"link {link.name} is being deleted: some of what it has promoted may be forgotten already"


def _delete_guards(state: State, link: LinkRecord, delivery_timeout_s: float, now: int) -> list[Finding]:
    """Return what still needs a link's record: topics and groups that are not promoted, and routers.

    Without the barriers a router would take a repeated write for a first write, and the target would append again.
    """
    found = unpromoted(state, link.name)
    routers = ", ".join(router.name for router in state.routers())
    if link.finished_ms and routers:
        found.append(
            refuse(
                "routers-stay",
                f"the link is finished, and without its record router {routers} would take clients in again",
                "keep the link as long as a router answers at a bootstrap address, or stop the routers first",
            )
        )
    if routers and not found:
        found += retries(state, link.name, delivery_timeout_s, now)
    return found


def retries(state: State, link: str, delivery_timeout_s: float, now: int) -> list[Finding]:
    """Refuse while a producer may repeat a write from before the newest flip: only routers recognise repetitions."""
    newest = max(state.topics(link), key=lambda topic: topic.promoted_ms, default=None)
    left = delivery_timeout_s - (now - newest.promoted_ms) / 1000 if newest is not None else 0
    if newest is None or left <= 0:
        return []
    return [
        refuse(
            "retries-not-over",
            f"a producer may still repeat a write from before the promote of {newest.topic}, for {left:.0f} s: "
            f"that long after the last promote (delivery timeout {delivery_timeout_s:g} s) routers must stay "
            "between producers and the target",
            f"repeat in {left:.0f} s; --delivery-timeout where no producer's delivery.timeout.ms is as long",
        )
    ]


def unpromoted(state: State, link: str) -> list[Finding]:
    """Return a finding for each part of a link that still needs its mirror, its routers or its controller."""
    topics, groups = state.topics(link), state.groups(link)
    forgotten = [("topic", t.topic) for t in state.topics(link, forgotten=True) if t.forgotten_ms]
    forgotten += [("group", g.group) for g in state.groups(link, forgotten=True) if g.forgotten_ms]
    return [
        *(_unpromoted("topic", t.topic, t.phase, link) for t in topics if t.phase is not TopicPhase.PROMOTED),
        *(
            refuse(
                "being-forgotten",
                f"{noun} {name} is being forgotten: what was for the mirror is not all put back yet",
                f"{advised(f'{noun} forget', link, name)} ends it",
            )
            for noun, name in forgotten
        ),
        *(
            refuse(
                "topic-not-settled",
                f"topic {t.topic} has not got its own configs back{f': {t.reason}' if t.reason else ''}",
                "a running controller puts them back: kmigrate status",
            )
            for t in topics
            if t.unsettled
        ),
        *(
            refuse(
                "topic-sealed",
                f"the source does not take writes to topic {t.topic}, in place of router "
                f"{', '.join(sorted(set(t.seal.routers.values())))}, which has not answered",
                f"start that router again, or, if its process has ended: kmigrate router forget "
                f"{min(t.seal.routers.values())} --dead",
            )
            for t in topics
            if t.seal is not None
        ),
        *(_unpromoted("group", g.group, g.phase, link) for g in groups if g.phase is not GroupPhase.PROMOTED),
    ]


def _unpromoted(noun: Noun, name: str, phase: str, link: str) -> Finding:
    promote = advised("promote" if noun == "topic" else "group promote", link, name)
    way_on = f"{promote}, or, if it shall not move: {advised(f'{noun} forget', link, name)}"
    return refuse(f"{noun}-not-promoted", f"{noun} {name} is {phase}", way_on)


def refuse_finished(link: LinkRecord) -> None:
    """Refuse new topics and groups of a finished link: its routers would not hold the writes of clients that have left.

    A link that is being deleted refuses, too: a forgotten topic would count as new, and clients return to the source.
    """
    if link.deleting_ms:
        raise Refused(
            "being-deleted",
            _deleting(link),
            still_true="nothing was changed",
            next_step=_END_DELETE.format(link.name),
        )
    if link.finished_ms:
        raise Refused(
            "link-finished",
            f"link {link.name} is finished: its clients write to the target without a router",
            still_true="nothing was changed",
            next_step=f"kmigrate link finish {link.name} --undo, or a link of another name",
        )


def link_keys(state: State, link: str) -> list[str]:
    """Return the keys of all records of a link, its own key last: after a crash the link can be deleted again."""
    parts = [key for key, record in state.records.items() if getattr(record, "link", None) == link]
    return [*sorted(parts), link_key(link)]


async def check_link(connections: Connections, name: str | None, *, raises: bool = True) -> Plan:
    """Contact both clusters of a link and return what stands in the way; change nothing."""
    link = resolve_link(connections.log.state, name)
    found = [
        ok("target-answers", f"target {link.target.name} answers: {len(connections.target.metadata.brokers)} brokers")
    ]
    try:
        source, _ = await connections.source(link)
        found.append(ok("source-answers", f"source {link.source.name} answers: {len(source.metadata.brokers)} brokers"))
        found += await _advertised_findings(source) + await _advertised_findings(connections.target)
        found += await access_findings(connections, link)
        found += await state_findings(connections.target)
        found += await memory_findings(connections, raises=raises)
    except (Refused, Unreachable, AuthenticationFailed) as error:
        found.append(refuse(error.ref, error.what, error.next_step))
    if not mirror_runs(connections.log, link.name):
        found.append(warn("no-mirror", no_mirror(link.name), start_mirror(link.name)))
    if not controller_runs(connections.log):
        what = "no controller process is heard of: no promote is carried out"
        found.append(warn("no-controller", what, START_CONTROLLER))
    if not connections.log.alive(RouterPresence):
        found.append(warn("no-router", "no router process is heard of", START_ROUTER))
    return Plan.of("link check", [], found)


async def _advertised_findings(cluster: ClusterClient) -> list[Finding]:
    """Refuse brokers that cannot be reached at the addresses that they advertise."""
    faults = await advertised_faults(cluster)
    return [refuse("advertised-unreachable", fault.text, fault.next_step) for fault in faults]
