"""The memory of a process: the length of each container that hangs on an object of kmigrate, by the object's path."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

__all__ = ["census", "grown"]

_LEAVES = (str, bytes, bytearray, memoryview, int, float, type(None), type)
_IS = (Mapping, Set, list, tuple, deque)


def census(root: object) -> dict[str, int]:
    """Return lengths by path. Lengths of the same path are summed up, for example over all connections."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    line: deque[tuple[str, object]] = deque([("", root)])
    while line:
        path, thing = line.popleft()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, _IS):
            if not isinstance(thing, tuple):
                found[path] += len(thing)
            values = thing.values() if isinstance(thing, Mapping) else thing
            line.extend((f"{path}[]", value) for value in list(values))
        elif type(thing).__module__.startswith("kmigrate."):
            line.extend((f"{path}.{name}".lstrip("."), value) for name, value in _attributes(thing))
    return dict(found)


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    slots = {name for kind in type(thing).__mro__ for name in _named(getattr(kind, "__slots__", ()))}
    for name in sorted({*getattr(thing, "__dict__", ()), *slots}):
        try:
            yield name, getattr(thing, name)
        except AttributeError:  # a slot that was never filled
            continue


def _named(slots: str | Iterable[str]) -> Iterable[str]:
    return [slots] if isinstance(slots, str) else slots


def grown(
    early: Iterable[Mapping[str, int]], late: Iterable[Mapping[str, int]], bounds: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Return the containers that are longer late than early, with both lengths.

    The shortest length that was seen of each path counts, because work comes and goes. `bounds` are paths that may
    grow, and how far.
    """
    early, late = list(early), list(late)
    out: dict[str, tuple[int, int]] = {}
    for path in sorted({path for each in late for path in each}):
        before, now = (min(each.get(path, 0) for each in several) for several in (early, late))
        if now > max(before * 1.05 + _SLACK, bounds.get(path, 0)):
            out[path] = before, now
    return out


_SLACK = 8
"""Room for connections that came a moment ago, and for their work under way."""
