"""The size limit (`max.message.bytes`) by which `sealing` in a fence and `closing` after a flip refuse writes (V4)."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.append import Takes, ask_to_append
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Refused, Unreachable
from kmigrate.model.records import SIZE_LIMIT, TopicRecord
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff

__all__ = ["SizeLimit", "put_back_size_limit"]


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The size limit of one topic on its source."""

    source: ClusterClient
    admin: Admin
    record: TopicRecord

    async def tried(self, value: str) -> str:
        """Have the source check a change without making the change; return the topic's own limit, or ''."""
        topic = self.record.topic
        await self.admin.alter_topic_configs(topic, {SIZE_LIMIT: value}, try_only=True)
        entry = (await self.admin.topic_configs([topic]))[topic].get(SIZE_LIMIT)
        return entry.value if entry is not None and entry.own else ""

    async def put(self, value: str) -> None:
        await self.admin.alter_topic_configs(self.record.topic, {SIZE_LIMIT: value})

    async def put_back(self, before: str) -> None:
        await put_back_size_limit(self.admin, self.record.topic, before)

    async def shown(self, wanted: Takes, deadline: float, pause_s: float) -> None:
        """Wait until the leader of every partition shows that the limit is in force, or is gone."""
        topic, missing = self.record.topic, list(range(self.record.partitions))
        tries = Backoff(pause_s, within_s=deadline - monotonic())
        while True:
            try:
                found = await ask_to_append(self.source, topic, missing)
                missing = [partition for partition in missing if found.get(partition) is not wanted]
                if not missing:
                    return
                problem = f"the source still takes {found[missing[0]].value}" if missing[0] in found else "no answer"
            except Unreachable as away:
                problem = away.what
                await self.source.refresh([topic])
            await tries.pause(Refused("seal-unproven", f"{topic}-{missing[0]}: {problem}"))


async def put_back_size_limit(admin: Admin, topic: str, before: str) -> None:
    """Give a source topic back its own limit from before the seal; '': the topic had none."""
    if before:
        await admin.alter_topic_configs(topic, {SIZE_LIMIT: before})
    else:
        await admin.alter_topic_configs(topic, {}, (SIZE_LIMIT,))
