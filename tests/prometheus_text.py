"""A strict reader of Prometheus' text format 0.0.4, written from the format's description and not from our writer.

The reader refuses errors that a lenient parser accepts:

- a sample before its TYPE, or a family in two places,
- two equal series, or labels that the family's kind does not allow,
- falling buckets, or a histogram whose +Inf is not the count.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from kmigrate.observe.registry import Registry, exposition

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.*)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary|untyped)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\n|\\")*)"(?:,|$)')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    name: str
    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    """Values by sample name and labels, `le` and `quantile` included."""


@dataclass
class Exposition:
    families: dict[str, Family]

    def value(self, sample: str, **labels: str) -> float:
        """Return the value of the only series with these labels."""
        found = self.series(sample, **labels)
        assert len(found) == 1, f"{sample}{labels}: {len(found)} series"
        return next(iter(found.values()))

    def series(self, sample: str, **labels: str) -> dict[Labels, float]:
        wanted = set(labels.items())
        return {
            had: value
            for family in self.families.values()
            for (name, had), value in family.samples.items()
            if name == sample and wanted <= had
        }


def text(registry: Registry) -> str:
    """Return the text with which a scrape of the registry is answered."""
    return "".join(exposition(registry))


def parse(text: str) -> Exposition:
    assert text.endswith("\n"), "the last line must end, too"
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    current: Family | None = None
    for line in text.split("\n")[:-1]:
        if said := _HELP.fullmatch(line):
            assert said[1] not in helps, f"two HELP lines: {line}"
            helps[said[1]] = _unescape(said[2])
        elif said := _TYPE.fullmatch(line):
            assert said[1] not in families, f"two TYPE lines: {line}"
            assert said[1] in helps, f"TYPE without HELP: {line}"
            current = families[said[1]] = Family(said[1], said[2], helps[said[1]])
        else:
            said = _SAMPLE.fullmatch(line)
            assert said, f"no line of the format: {line!r}"
            assert current is not None and said[1] in _names(current), f"outside its family: {line}"
            labels = _labels(said[2])
            key = (said[1], frozenset(labels.items()))
            assert key not in current.samples, f"the same series twice: {line}"
            current.samples[key] = float(said[3].replace("Inf", "inf"))
    for family in families.values():
        assert family.samples, f"{family.name} has no sample"
        _check(family)
    return Exposition(families)


def _names(family: Family) -> set[str]:
    name = family.name
    if family.kind == "histogram":
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    if family.kind == "summary":
        return {name, f"{name}_sum", f"{name}_count"}
    return {name}


def _unescape(text: str) -> str:
    return re.sub(r'\\[\\n"]', lambda found: _ESCAPES[found[0]], text)


def _labels(text: str | None) -> dict[str, str]:
    out: dict[str, str] = {}
    at = 0
    while text and at < len(text):
        found = _LABEL.match(text, at)
        assert found, f"no label at {text[at:]!r}"
        assert found[1] not in out, f"label {found[1]} twice"
        out[found[1]] = _unescape(found[2])
        at = found.end()
    return out


def _check(family: Family) -> None:
    special = {"histogram": "le", "summary": "quantile"}.get(family.kind)
    groups: dict[Labels, dict[float, float]] = {}
    for (name, labels), value in family.samples.items():
        own = dict(labels)
        bound = own.pop(special, None) if special else None
        group = groups.setdefault(frozenset(own.items()), {})
        if special and name not in (f"{family.name}_sum", f"{family.name}_count"):
            assert bound is not None, f"{name} without {special}"
            group[float(bound.replace("Inf", "inf"))] = value
        else:
            assert bound is None, f"{name} with {special}"
        if family.kind == "counter":
            assert family.name.endswith(("_total", "_sum", "_count")), f"{family.name} is a counter"
            assert value >= 0
    for labels, bounds in groups.items():
        values = [value for _, value in sorted(bounds.items())]
        assert values == sorted(values), f"{family.name}{dict(labels)} falls"
        if family.kind == "histogram":
            assert bounds[math.inf] == family.samples[(f"{family.name}_count", labels)]
        if special:
            assert (f"{family.name}_sum", labels) in family.samples
