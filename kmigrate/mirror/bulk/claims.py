"""How a try of a Spark task comes to own partitions, and releases them.

Plain records need no owner (M1). Holes (W5), records beyond the broker's memory (W1), logs under a log cleaner, and the
record of a stop need an owner. So a try claims partitions in the topic's record, by a compare-and-set write under a
term above all earlier terms (V3), unless another process may still own the partition:

    no owner, or a silent owner ──claim──▶ this try ──release──▶ no owner

A second try of the same task (speculation, or a worker that was thought lost) copies in parallel, and claims a
partition once the first try has released the partition or is silent by the clocks of `membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from kmigrate.mirror.sharing.membership import Membership
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import Claim, CopyEngine, TopicRecord
from kmigrate.model.sharing import assigned, by_spark, lease_of, releasing
from kmigrate.model.state import State

__all__ = ["Claims", "claimable"]


def claimable(
    state: State,
    record: TopicRecord,
    wanted: Iterable[int],
    instance: str,
    presences: Iterable[MirrorPresence],
    silent: Callable[[str], bool],
) -> list[int]:
    """Return the wanted partitions that this process does not own yet and that no other process may still own."""
    if not by_spark(record):
        return []
    assignment = state.assignment(record.link)
    generation = assignment.generation if assignment is not None else -1
    daemons = [presence for presence in presences if presence.engine is CopyEngine.DAEMON]
    if any(presence.shares and presence.generation < generation for presence in daemons):
        return []  # a mirror process may not have read yet that Spark copies the topic now
    held = {partition for presence in daemons for partition in presence.topics.get(record.topic, {})}

    def free(partition: int) -> bool:
        claim = record.claims.get(partition)
        owners = {
            claim.instance if claim is not None else "",
            assigned(assignment, record.topic, partition),
            releasing(assignment, record.topic, partition),
        }
        return instance not in owners and all(silent(owner) for owner in owners if owner)

    return [partition for partition in wanted if partition not in held and free(partition)]


class Claims:
    """The claims of a try on partitions of a link's topics."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def claim(self, topic: str, wanted: Collection[int]) -> None:
        """Claim the partitions that can be claimed now; raise the errors of the state log."""
        silent, presences = self._membership.silent, self._membership.presences()

        def decide(state: State) -> TopicRecord | None:
            record = state.topic(self._membership.link, topic)
            if record is None:
                return None
            free = claimable(state, record, wanted, self._membership.instance, presences, silent)
            if not free:
                return None
            assignment, lease = state.assignment(self._membership.link), state.lease(lease_of(self._membership.link))
            before = (
                record.claimed_term,
                assignment.generation if assignment is not None else 0,
                lease.term if lease is not None else 0,
            )
            term = max(before) + 1
            mine = dict.fromkeys(free, Claim(self._membership.instance, term))
            return replace(record, claims={**record.claims, **mine}, claimed_term=term)

        if decide(self._membership.log.state) is not None:
            await self._membership.log.append(decide)

    async def release(self, topic: str) -> None:
        """Release this process's claims on a topic, so that no other process waits until this process is silent."""

        def decide(state: State) -> TopicRecord | None:
            record = state.topic(self._membership.link, topic)
            if record is None:
                return None
            others = {p: claim for p, claim in record.claims.items() if claim.instance != self._membership.instance}
            return None if len(others) == len(record.claims) else replace(record, claims=others)

        if decide(self._membership.log.state) is not None:
            await self._membership.log.append(decide)

    def term(self, topic: str, partition: int) -> int:
        """Return the term of this process's claim; 0 if there is none, or others may count this process as gone."""
        record = self._membership.log.state.topic(self._membership.link, topic)
        if record is None or not by_spark(record) or not self._membership.sure():
            return 0
        claim = record.claims.get(partition)
        return claim.term if claim is not None and claim.instance == self._membership.instance else 0
