"""How a link's partitions are distributed among its processes: a balanced and sticky assignment. Pure.

    unassigned ──▶ an owner ──▶ moving ──the owner has acted on the move and has released the partition──▶ new owner
                          └────────────────────── the owner is gone or silent ────────────────────────────▶

A  The partition counts of any two members differ by at most 1; only the minimum moves, or nothing.
B  A partition is taken from a live member in two steps, so that the old owner stops before the new owner begins. The
   old owner announces two facts: an assignment that asks for the partition was acted on, and the partition is no longer
   held. A partition of a gone or silent member is taken at once, as the lease is. This is safe, because appends are
   compare-and-set, and brokers refuse holes of an older generation (V3).
C  No partition of a topic in a promote moves, because a fence holds producers.
D  The generation grows with every assignment, and is above every earlier term of the lease.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import AssignmentRecord
from kmigrate.model.sharing import assigned, releasing

__all__ = ["Releases", "balanced", "next_assignment"]

Key = tuple[str, int]


def next_assignment(
    link: str,
    before: AssignmentRecord | None,
    members: Collection[str],
    wanted: Mapping[str, int],
    presences: Iterable[MirrorPresence] = (),
    *,
    term: int,
    pinned: Collection[str] = (),
    since: Mapping[Key, int] | None = None,
) -> AssignmentRecord:
    """Return the next assignment, or `before` itself if nothing changes; `since` is the result of `Releases.since`.

    `members` may own partitions, `wanted` counts partitions by topic, `presences` are live, `pinned` is for rule C.
    """
    names = sorted(members)
    index = {name: number for number, name in enumerate(names)}
    keys = [(topic, partition) for topic, count in wanted.items() for partition in range(count)]
    now = {key: owner for key in keys for owner in [assigned(before, *key)] if owner in index}
    moving = _moving(before, index, presences, since or {})
    aim = balanced(names, keys, now, pinned)

    def next_place(key: Key) -> int:
        leaves = moving.get(key, now.get(key, aim[key]))
        return index[aim[key]] if leaves == aim[key] and key not in moving else ~index[leaves]

    owners = {topic: tuple(next_place((topic, p)) for p in range(count)) for topic, count in wanted.items()}
    if before is not None and (before.members, before.owners) == (tuple(names), owners):
        return before
    generation = max(term, before.generation if before is not None else 0) + 1
    return AssignmentRecord(link, generation, tuple(names), owners)


class Releases:
    """The generation since which each moving partition has been asked of its present owner.

    The lease's holder alone writes assignments, and looks at each before writing the next, so no first request is
    missed within a term. Under another term, every move counts as asked by the newest assignment.
    """

    def __init__(self) -> None:
        self._term = 0
        self._since: dict[Key, tuple[str, int]] = {}

    def since(self, term: int, newest: AssignmentRecord | None) -> dict[Key, int]:
        """Return these generations after a look at the newest assignment as the holder of the lease under `term`."""
        known = self._since if term == self._term else {}
        now: dict[Key, tuple[str, int]] = {}
        generation = newest.generation if newest is not None else -1
        for key, member in _asked(newest).items():
            first = known.get(key)
            now[key] = first if first is not None and first[0] == member else (member, generation)
        self._term, self._since = term, now
        return {key: generation for key, (_, generation) in now.items()}


def _asked(assignment: AssignmentRecord | None) -> dict[Key, str]:
    """Return the partitions that are moving, and the member that releases each of them."""
    return {
        (topic, partition): releasing(assignment, topic, partition)
        for topic, owners in (assignment.owners.items() if assignment is not None else ())
        for partition, index in enumerate(owners)
        if index < 0
    }


def _moving(
    before: AssignmentRecord | None,
    members: Container[str],
    presences: Iterable[MirrorPresence],
    since: Mapping[Key, int],
) -> dict[Key, str]:
    """Return the partitions that a live member was asked to release and may still hold (rule B)."""
    if before is None:
        return {}
    presence_of = {presence.instance: presence for presence in presences}

    def holds(member: str, topic: str, partition: int) -> bool:
        presence = presence_of.get(member)
        acted = presence is not None and presence.generation >= since.get((topic, partition), before.generation)
        return presence is None or not acted or partition in presence.topics.get(topic, {})

    return {key: member for key, member in _asked(before).items() if member in members and holds(member, *key)}


def balanced(
    members: Sequence[str], keys: Sequence[Key], now: Mapping[Key, str], pinned: Collection[str] = ()
) -> dict[Key, str]:
    """Return an owner for every partition: rule A, and each topic spread as evenly as rule A allows."""
    load: dict[str, dict[str, list[int]]] = {member: {} for member in members}
    count = dict.fromkeys(members, 0)
    owner = dict(now)

    def give(key: Key, member: str) -> None:
        owner[key] = member
        count[member] += 1
        load[member].setdefault(key[0], []).append(key[1])

    for key in keys:
        if key in owner:
            give(key, owner[key])
    for key in keys:
        if key not in owner:
            give(key, min(members, key=lambda m: (count[m], len(load[m].get(key[0], ())), m)))
    stock = {m: [(-len(parts), topic) for topic, parts in load[m].items() if topic not in pinned] for m in members}
    for heap in stock.values():
        heapify(heap)
    while True:
        giver = max((m for m in members if stock[m]), key=lambda m: count[m], default=members[0])
        topic = stock[giver][0][1] if stock[giver] else ""
        poorest = min(members, key=lambda m: (count[m], len(load[m].get(topic, ()))))
        if count[giver] <= count[poorest] + 1 or not topic:
            return owner  # a member that has received has at most one more than the poorest, and never gives
        owned = -heappop(stock[giver])[0]
        if owned > 1:
            heappush(stock[giver], (1 - owned, topic))
        count[giver] -= 1
        give((topic, load[giver][topic].pop()), poorest)
