"""The table of docs/apis.md, made from what the router offers: `python -m kmigrate.cli.reference.apis FILE`.

People write the page above the marker, which stays. A test compares the table, so that every API has a row.
Kafka's own versions come from the message schemas in the jars of both clusters.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kmigrate.kafka_jars.jars import message_schemas
from kmigrate.router.wire.apis import APIS, OFFERED, Api
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION

__all__ = ["client_apis", "with_table"]

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
    return "".join((written, marker, "\n".join(rows) + "\n"))


def _span(api: Api) -> str:
    low, high = api.versions
    return str(low) if low == high else f"{low}-{high}"


def _treatment(api: Api) -> str:
    return "; ".join(filter(None, (api.treatment.value, api.note, api.cap)))


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
