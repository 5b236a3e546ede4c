"""Topic configs on the target: the source's configs, relaxed while the topic is mirrored, exact from the promote on.

While a topic is mirrored, the target must accept old records of any timestamp and size, and nothing may expire or be
compacted before the copy is complete (A6, A7, A8, A9). Promote restores the topic's own configs (`restore_configs`,
`drop_configs` of the topic record).

The source decides a replicated key, as with MirrorMaker 2: the source topic's value is set on the target topic, and a
key without a value is removed there. Other keys keep the target's value. Keys that name brokers (replica throttles),
need tiered storage or come from a vendor are never replicated, nor is `unclean.leader.election.enable`, the target's
own decision. `config_exclude` names more.

A value that the source topic inherits from its brokers or its Kafka version is set on the target topic if the target's
brokers would give another value that loses data or breaks clients (`carried_configs`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import ClusterClient
from kmigrate.model.patterns import excluded
from kmigrate.model.records import SEALED_SIZE, SIZE_LIMIT, Seal

__all__ = [
    "Configs",
    "as_found",
    "broker_defaults",
    "carried_configs",
    "changes",
    "own_configs",
    "replicated",
    "target_configs",
    "topic_defaults",
]

_MIN_SEGMENT = 1 << 20
"""Smallest segment size that Kafka 4 accepts (A15)."""
_ROOM = 96 << 20
"""Batch and segment limit while mirrored: old batches may exceed present limits; a segment holds its batch (A6)."""
_DIFFERENCE = "message.timestamp.difference.max.ms"
"""The single config of both time limits, until Kafka 4.0."""
_TIME_LIMITS = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")
_IN_SYNC = "min.insync.replicas"

_BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
}
"""Carried topic configs and their broker config names; the others (segments, flushes, compression) only cost work."""
_RETENTION_MS = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
"""Three configs of the same time and their units: the first that is set applies; negative means for ever."""

_REPLICATED = _BROKER_NAMES.keys() | {
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "min.cleanable.dirty.ratio",
    "preallocate",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
}

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
_RELAXED = {**_WHILE_MIRRORING, "segment.bytes": str(_ROOM)}


@dataclass(frozen=True, slots=True)
class Configs:
    """The configs that the target topic gets now, and the changes by which promote restores its own configs."""

    now: Mapping[str, str]
    restore: Mapping[str, str]
    drop: tuple[str, ...]


async def broker_defaults(target: ClusterClient, admin: Admin) -> dict[str, str]:
    """Return the configs that a target topic inherits from its brokers (`topic_defaults`)."""
    return topic_defaults(await admin.broker_configs(next(iter(target.metadata.brokers))))


def topic_defaults(configs: Mapping[str, ConfigValue]) -> dict[str, str]:
    """Return the carried configs that a topic inherits from a broker, as far as the broker's configs show them."""
    broker_values = {name: entry.value for name, entry in configs.items() if entry.value}
    names = {**_BROKER_NAMES, _DIFFERENCE: f"log.{_DIFFERENCE}"}
    values = {key: broker_values[name] for key, name in names.items() if name in broker_values}
    times = [int(broker_values[name]) * ms for name, ms in _RETENTION_MS.items() if name in broker_values]
    if times:
        values["retention.ms"] = str(max(-1, times[0]))
    return _both_limits(values)


def own_configs(
    configs: Mapping[str, ConfigValue], seal: Seal | None = None, kept: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a source topic's own configs; `kept` holds the configs that the topic's record restores.

    A size limit of 1 byte is a promote's seal and hides the brokers' limit; a recorded former limit is the topic's own.
    """
    own = _set_on(configs)
    if own.get(SIZE_LIMIT) == SEALED_SIZE:
        del own[SIZE_LIMIT]
        before = (seal.before if seal is not None else "") or (kept or {}).get(SIZE_LIMIT, "")
        if before:
            own[SIZE_LIMIT] = before
    return own


def carried_configs(configs: Mapping[str, ConfigValue], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return inherited values that these target defaults lack; more in-sync replicas there stay: no loss."""
    own = _set_on(configs)
    values = _both_limits({key: entry.value for key, entry in configs.items()})
    carried = {key: values[key] for key in _BROKER_NAMES if key in values and key not in own}
    if _IN_SYNC in carried and int(carried[_IN_SYNC]) < int(defaults.get(_IN_SYNC, 0)):
        del carried[_IN_SYNC]
    return {key: value for key, value in carried.items() if value != defaults.get(key)}


def _set_on(configs: Mapping[str, ConfigValue]) -> dict[str, str]:
    return _both_limits({key: entry.value for key, entry in configs.items() if entry.own})


def _both_limits(values: Mapping[str, str]) -> dict[str, str]:
    """Return configs with the two newer time limits; the older config of both applies if the newer set no limit."""
    both = dict(values)
    one = both.pop(_DIFFERENCE, None)
    if one is not None:
        both.update({key: one for key in _TIME_LIMITS if both.get(key, _FOR_EVER) == _FOR_EVER})
    return both


def target_configs(
    own: Mapping[str, str],
    replicas: int,
    *,
    exclude: Collection[str] = (),
    known: Collection[str] = (),
    before: Mapping[str, str] | None = None,
) -> Configs:
    """Return the configs of the target topic, from its own (set or carried) configs after the promote.

    `exclude`: expressions of keys that are not replicated. `known`: all keys of the target (empty: all). `before`: the
    other keys' former values on the target topic, which promote restores.
    """
    relaxed = {key: value for key, value in _WHILE_MIRRORING.items() if not known or key in known}
    keys = replicated(exclude, known)
    copied = {key: value for key, value in own.items() if key in keys}
    if "segment.bytes" in copied:
        copied["segment.bytes"] = str(max(int(copied["segment.bytes"]), _MIN_SEGMENT))
    if int(copied.get("segment.bytes", _ROOM)) < _ROOM:
        relaxed["segment.bytes"] = str(_ROOM)
    if _IN_SYNC in copied:
        copied[_IN_SYNC] = str(min(int(copied[_IN_SYNC]), replicas))
    later = {**{key: value for key, value in (before or {}).items() if key not in keys}, **copied}
    return Configs(
        now={**copied, **relaxed},
        restore={key: later[key] for key in sorted(relaxed) if key in later},
        drop=tuple(key for key in sorted(relaxed) if key not in later),
    )


def as_found(own: Mapping[str, str], restore: Mapping[str, str], drop: Collection[str]) -> dict[str, str]:
    """Return the configs that were set on a target topic before the mirror relaxed them, maybe in an earlier try.

    The topic's record holds the former values. A value that is not the mirror's relaxed value was set by somebody else.
    """
    relaxed = {key for key, value in own.items() if value == _RELAXED.get(key) and (key in restore or key in drop)}
    kept = {key: value for key, value in own.items() if key not in relaxed}
    return {**kept, **{key: restore[key] for key in relaxed if key in restore}}


def replicated(exclude: Collection[str], known: Collection[str]) -> frozenset[str]:
    """Return the keys that the source decides; `exclude` and `known` are as in `target_configs`."""
    return frozenset(key for key in _REPLICATED if not excluded(exclude, key) and (not known or key in known))


def changes(
    wanted: Mapping[str, str], present: Mapping[str, str], exclude: Collection[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the configs to set and to remove, so that a topic with the `present` configs gets the wanted configs."""
    put = {key: value for key, value in wanted.items() if present.get(key) != value}
    keys = replicated(exclude, ())
    return put, tuple(sorted(key for key in present if key in keys and key not in wanted))
