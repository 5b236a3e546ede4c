"""Which configs the target topic has: the source's, relaxed while it is mirrored, as they are from the promote on.

While mirroring, history must get in whatever its age and size, and nothing may age out or be compacted under
the copier's feet (A6, A7, A8, A9); promote puts the topic's own configs back (`restore_configs`,
`drop_configs` of the topic record).

For a replicated key the source decides, as with MirrorMaker 2: what is set there is set here, what is not set there is
removed here. A key that is not replicated (MM-70) belongs to the target: it stays as somebody set it. Never
replicated are keys that name brokers (replica throttles), that need tiered storage, that a vendor added, and
`unclean.leader.election.enable`, which is the target cluster's own decision; `config_exclude` names more.

What the source topic has from its brokers' configs, or from the defaults of its Kafka, is set here, too, where the
target's brokers would give it another value and that would lose data or break clients (`carried_configs`).
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
"""Kafka 4 refuses smaller segments (A15)."""
_ROOM = 96 << 20
"""Batches may be larger than the source's limits are today, and no batch is larger than its segment (A6)."""
_DIFFERENCE = "message.timestamp.difference.max.ms"
"""Both time limits in one, until Kafka 4.0."""
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
"""The keys that are carried, and what a broker calls them. Others (sizes of segments, flushes, compression) cost or
save work, but no client and no record depends on them."""
_RETENTION_MS = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
"""Three configs of one time and their units: the first that is set holds, and less than nothing is for ever."""

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
_RELAXED = {**_WHILE_MIRRORING, "segment.bytes": str(_ROOM)}


@dataclass(frozen=True, slots=True)
class Configs:
    """What the target topic gets now, and how promote brings it to its own."""

    now: Mapping[str, str]
    restore: Mapping[str, str]
    drop: tuple[str, ...]


async def broker_defaults(target: ClusterClient, admin: Admin) -> dict[str, str]:
    """What a topic of the target has where it does not say (`topic_defaults`)."""
    return topic_defaults(await admin.broker_configs(next(iter(target.metadata.brokers))))


def topic_defaults(told: Mapping[str, ConfigValue]) -> dict[str, str]:
    """What a broker with these configs gives its topics, of the keys that are carried, as far as it tells them."""
    said = {name: entry.value for name, entry in told.items() if entry.value}
    names = {**_BROKER_NAMES, _DIFFERENCE: f"log.{_DIFFERENCE}"}
    values = {key: said[name] for key, name in names.items() if name in said}
    times = [int(said[name]) * ms for name, ms in _RETENTION_MS.items() if name in said]
    if times:
        values["retention.ms"] = str(max(-1, times[0]))
    return _both_limits(values)


def own_configs(
    told: Mapping[str, ConfigValue], seal: Seal | None = None, kept: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What is set on a source topic itself.

    A limit of one byte is a promote's seal and nobody's own: what stood there before is the topic's, as far as the
    topic's record still knows it. `kept` is what the record restores: beneath a seal the brokers' own limit cannot be
    seen, either.
    """
    own = _set_on(told)
    if own.get(SIZE_LIMIT) == SEALED_SIZE:
        del own[SIZE_LIMIT]
        before = (seal.before if seal is not None else "") or (kept or {}).get(SIZE_LIMIT, "")
        if before:
            own[SIZE_LIMIT] = before
    return own


def carried_configs(told: Mapping[str, ConfigValue], defaults: Mapping[str, str]) -> dict[str, str]:
    """What a source topic has from its brokers and a topic of the target, with these defaults, would not have.

    A target that wants more replicas in sync than the source is not talked out of it: that loses nothing.
    """
    own = _set_on(told)
    values = _both_limits({key: entry.value for key, entry in told.items()})
    carried = {key: values[key] for key in _BROKER_NAMES if key in values and key not in own}
    if _IN_SYNC in carried and int(carried[_IN_SYNC]) < int(defaults.get(_IN_SYNC, 0)):
        del carried[_IN_SYNC]
    return {key: value for key, value in carried.items() if value != defaults.get(key)}


def _set_on(told: Mapping[str, ConfigValue]) -> dict[str, str]:
    return _both_limits({key: entry.value for key, entry in told.items() if entry.own})


def _both_limits(values: Mapping[str, str]) -> dict[str, str]:
    """With the two time limits of newer Kafkas in place of the one of older ones, which holds where they set none."""
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
    standing: Mapping[str, str] | None = None,
) -> Configs:
    """Configs of the target topic, from those that are its own after the promote: set on the source topic, or carried.

    `exclude` are expressions of keys that are not replicated, `known` the keys that the target has at all (empty: all),
    `standing` what the target topic itself had of the others before it was relaxed: promote puts that back.
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
    later = {**{key: value for key, value in (standing or {}).items() if key not in keys}, **copied}
    return Configs(
        now={**copied, **relaxed},
        restore={key: later[key] for key in sorted(relaxed) if key in later},
        drop=tuple(key for key in sorted(relaxed) if key not in later),
    )


def as_found(own: Mapping[str, str], restore: Mapping[str, str], drop: Collection[str]) -> dict[str, str]:
    """What a target topic had set on it before the mirror relaxed it, where an earlier try may have done so already and
    its record says what it noted; what has another value than the mirror's was set by somebody else."""
    relaxed = {key for key, value in own.items() if value == _RELAXED.get(key) and (key in restore or key in drop)}
    kept = {key: value for key, value in own.items() if key not in relaxed}
    return {**kept, **{key: restore[key] for key in relaxed if key in restore}}


def replicated(exclude: Collection[str], known: Collection[str]) -> frozenset[str]:
    """The keys for which the source decides; `exclude` and `known` are as in `target_configs`."""
    return frozenset(key for key in _REPLICATED if not excluded(exclude, key) and (not known or key in known))


def changes(
    wanted: Mapping[str, str], standing: Mapping[str, str], exclude: Collection[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What must be set and what removed so that a topic with `standing` own configs has the wanted ones."""
    put = {key: value for key, value in wanted.items() if standing.get(key) != value}
    keys = replicated(exclude, ())
    return put, tuple(sorted(key for key in standing if key in keys and key not in wanted))
