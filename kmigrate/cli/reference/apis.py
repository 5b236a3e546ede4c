"""The table of docs/apis.md, made from what the router offers: `python -m kmigrate.cli.reference.apis FILE`.

People write the page above the marker, which stays. A test compares the table, so that every API has a row.
Kafka's own versions come from the message schemas in the jars of both clusters.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kmigrate.kafka_jars.jars import message_schemas
from kmigrate.router.wire.apis import APIS, DROPPED, OFFERED, Api
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION

__all__ = ["client_apis", "not_offered", "with_table"]

_MARKER = "<!-- From here on made by `python -m kmigrate.cli.reference.apis docs/apis.md`; do not edit. -->\n"


def client_apis(version: str) -> dict[int, tuple[str, str]]:
    """Return the name and versions of each API that a broker of this Kafka version offers to clients, by API key."""
    requests = {key: schemas["request"] for key, schemas in message_schemas(version).items()}
    return {
        key: (request["name"].removesuffix("Request"), request["validVersions"])
        for key, request in requests.items()
        if "broker" in (request.get("listeners") or ())
    }


def with_table(page: str) -> str:
    """Return the page with today's table below the marker."""
    written, marker, _ = page.partition(_MARKER)
    old, new = client_apis(SOURCE_VERSION), client_apis(TARGET_VERSION)
    rows = [
        f"\n| key | API | Kafka {SOURCE_VERSION} | Kafka {TARGET_VERSION} | router | what the router does |",
        "|---|---|---|---|---|---|",
    ]
    for key in sorted(old.keys() | new.keys()):
        name = (new.get(key) or old[key])[0]
        spans = [apis[key][1] if key in apis else "–" for apis in (old, new)]
        api = APIS[key]
        offered, text = (_span(api), _treatment(api)) if key in OFFERED else ("hidden", api.note)
        rows.append(f"| {key} | {name} | {spans[0]} | {spans[1]} | {offered} | {text} |")
    return "".join((written, marker, "\n".join([*rows, *_differences()]) + "\n"))


def not_offered(source: str, target: str) -> dict[int, list[int]]:
    """Return the versions of offered APIs that clusters of both Kafka versions take and the router does not."""
    of_source, of_target = client_apis(source), client_apis(target)
    found: dict[int, list[int]] = {}
    for key in OFFERED.keys() & of_source.keys() & of_target.keys():
        both = set(_versions(of_source[key][1])).intersection(_versions(of_target[key][1]))
        low, high = OFFERED[key].versions
        if left := sorted(version for version in both if not low <= version <= high):
            found[key] = left
    return found


def _versions(span: str) -> range:
    """Return the versions of an expression such as 0-12 or 0."""
    first, _, last = span.partition("-")
    return range(int(first), int(last or first) + 1)


def _differences() -> list[str]:
    """Return the table of all that `not_offered` finds, with the reasons."""
    pairs = [(SOURCE_VERSION, SOURCE_VERSION), (SOURCE_VERSION, TARGET_VERSION), (TARGET_VERSION, TARGET_VERSION)]
    left, names = [not_offered(*pair) for pair in pairs], client_apis(TARGET_VERSION)
    rows = [
        "\nVersions that both clusters take and the router does not, by Kafka's versions (source → target):\n",
        f"| API | {' | '.join(' → '.join(pair) for pair in pairs)} | reason |",
        f"|---|{'---|' * len(pairs)}---|",
    ]
    for key in sorted(set().union(*left)):
        cells = [", ".join(map(str, each.get(key, ()))) or "–" for each in left]
        every = [version for each in left for version in each.get(key, ())]
        low, high = OFFERED[key].versions
        reasons = [DROPPED] if min(every) < low else []
        reasons += [APIS[key].cap] if max(every) > high else []
        rows.append(f"| {names[key][0]} | {' | '.join(cells)} | {'; '.join(reasons)} |")
    return rows


def _span(api: Api) -> str:
    low, high = api.versions
    return str(low) if low == high else f"{low}-{high}"


def _treatment(api: Api) -> str:
    return "; ".join(filter(None, (api.treatment.value, api.note, api.cap)))


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
