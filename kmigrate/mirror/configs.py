"""Which configs the target topic has: the source's own, relaxed while it is mirrored, as they are from the promote on.

While mirroring, history must get in whatever its age and size, and nothing may age out or be compacted under
the copier's feet (A6, A7, A8, A9); promote puts the topic's own configs back (`restore_configs`,
`drop_configs` of the topic record).

For a replicated key the source decides, as with MirrorMaker 2: what is set there is set here, what is not set there is
removed here. A key that is not replicated (MM-70) belongs to the target: it stays as somebody set it. Never
replicated are keys that name brokers (replica throttles), that need tiered storage, that a vendor added, and
`unclean.leader.election.enable`, which is the target cluster's own decision; `config_exclude` names more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import ClusterClient
from kmigrate.model.patterns import excluded
from kmigrate.model.records import SEALED_SIZE, SIZE_LIMIT, Seal

__all__ = ["Configs", "changes", "default_times", "own_configs", "target_configs"]

_MIN_SEGMENT = 1 << 20
"""Kafka 4 refuses smaller segments (A15)."""
_ROOM = 96 << 20
"""Batches may be larger than the source's limits are today, and no batch is larger than its segment (A6)."""
_DIFFERENCE = "message.timestamp.difference.max.ms"
"""Both time limits in one, until Kafka 4.0."""
_TIME_TYPE = "message.timestamp.type"

_REPLICATED = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)

_FOR_EVER = str((1 << 63) - 1)

_WHILE_MIRRORING = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(_ROOM),
    "message.timestamp.after.max.ms": _FOR_EVER,
    "message.timestamp.before.max.ms": _FOR_EVER,
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


@dataclass(frozen=True, slots=True)
class Configs:
    """What the target topic gets now, and how promote brings it to its own."""

    now: Mapping[str, str]
    restore: Mapping[str, str]
    drop: tuple[str, ...]


async def default_times(target: ClusterClient, admin: Admin) -> str:
    """Whose times the target's records carry where a topic does not say."""
    told = await admin.broker_config(next(iter(target.metadata.brokers)), "log.message.timestamp.type")
    return told.value if told is not None else "CreateTime"


def own_configs(told: Mapping[str, ConfigValue], default: str, seal: Seal | None = None) -> dict[str, str]:
    """What is set on a source topic itself, and whose times its records carry where that differs from the target.

    A limit of one byte is a promote's seal and nobody's own: what stood there before is the topic's, as far as the
    topic's record still knows it.
    """
    own = {key: entry.value for key, entry in told.items() if entry.own}
    if own.get(SIZE_LIMIT) == SEALED_SIZE:
        del own[SIZE_LIMIT]
        if seal is not None and seal.before:
            own[SIZE_LIMIT] = seal.before
    times = told.get(_TIME_TYPE)
    return own if times is None or times.value == default else own | {_TIME_TYPE: times.value}


def target_configs(
    own: Mapping[str, str],
    replicas: int,
    *,
    exclude: Collection[str] = (),
    known: Collection[str] = (),
    standing: Mapping[str, str] | None = None,
) -> Configs:
    """Configs of the target topic, from those set on the source topic itself.

    `exclude` are expressions of keys that are not replicated, `known` the keys that the target has at all (empty: all),
    `standing` what the target topic itself had of the others before it was relaxed: promote puts that back.
    """
    relaxed = {key: value for key, value in _WHILE_MIRRORING.items() if not known or key in known}
    replicated = _replicated(exclude, known)
    copied = {key: value for key, value in own.items() if key in replicated}
    if "segment.bytes" in copied:
        copied["segment.bytes"] = str(max(int(copied["segment.bytes"]), _MIN_SEGMENT))
    if _DIFFERENCE in own:
        for key in ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"):
            if key in replicated:
                copied.setdefault(key, own[_DIFFERENCE])
    if int(copied.get("segment.bytes", _ROOM)) < _ROOM:
        relaxed["segment.bytes"] = str(_ROOM)
    if "min.insync.replicas" in copied:
        copied["min.insync.replicas"] = str(min(int(copied["min.insync.replicas"]), replicas))
    later = {**{key: value for key, value in (standing or {}).items() if key not in replicated}, **copied}
    return Configs(
        now={**copied, **relaxed},
        restore={key: later[key] for key in sorted(relaxed) if key in later},
        drop=tuple(key for key in sorted(relaxed) if key not in later),
    )


def _replicated(exclude: Collection[str], known: Collection[str]) -> frozenset[str]:
    return frozenset(key for key in _REPLICATED if not excluded(exclude, key) and (not known or key in known))


def changes(
    wanted: Mapping[str, str], standing: Mapping[str, str], exclude: Collection[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What must be set and what removed so that a topic with `standing` own configs has the wanted ones."""
    put = {key: value for key, value in wanted.items() if standing.get(key) != value}
    replicated = _replicated(exclude, ())
    return put, tuple(sorted(key for key in standing if key in replicated and key not in wanted))
