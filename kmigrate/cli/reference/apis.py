"""The table of docs/apis.md, made from what the router offers: `python -m kmigrate.cli.reference.apis FILE`.

People write the part of the page above the marker, and that part stays. A test compares the page with the table, so
that every API has a row. The versions that Kafka itself has are read from the message schemas in the jars of both
clusters.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kmigrate.kafka_jars.jars import message_schemas
from kmigrate.router.session.login import SASL_APIS
from kmigrate.router.wire.addresses import REWRITTEN
from kmigrate.router.wire.admin import ADMIN_APIS
from kmigrate.router.wire.broker_names import BROKER_CONFIG_APIS
from kmigrate.router.wire.followed import FOLLOWED_APIS
from kmigrate.router.wire.groups import HELD_APIS
from kmigrate.router.wire.offered import CAPPED, HIDDEN, OFFERED
from kmigrate.router.wire.quorum import QUORUM_APIS
from kmigrate.router.wire.transactions import TRANSACTION_APIS
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION

__all__ = ["client_apis", "with_table"]

_MARKER = "<!-- From here on made by `python -m kmigrate.cli.reference.apis docs/apis.md`; do not edit. -->\n"
_TRANSACTIONS = "passed; tells the target's transactions, of which none is open while it is open at a source"
_TREATED = {
    0: "split by topic: forwarded to the source, held, let through the gate, or passed",
    1: "passed; node ids rewritten from version 11 on, addresses from version 16 on; who is beyond the copy of a "
    "mirrored topic is told to come again",
    2: "passed; of a mirrored topic once its copy has what the source has; a look-up by time is answered as at the "
    "source",
    16: "passed; groups that follow are told as their source has them, by one broker",
    18: "cut down to this table",
    19: "passed; a mirrored topic exists, and one that only a source has is refused until it is mirrored",
    22: "passed; where the target refuses it to a writer of mirrored topics, the router asks itself",
    32: "passed; a mirrored topic's own values are told as on its source; brokers are named as each side knows them",
    61: "passed; tells the target's producers: of a mirrored topic its mirror, and not its writers",
    65: _TRANSACTIONS,
    66: _TRANSACTIONS,
    76: "passed; refused on a topic that is mirrored, until its promote",
    78: "passed; node ids and addresses rewritten",
    79: "passed; node ids and addresses rewritten",
}


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
        span = OFFERED.get(key)
        rows.append(
            f"| {key} | {name} | {spans[0]} | {spans[1]} | {_span(span)} | {_treatment(key) if span else HIDDEN[key]} |"
        )
    return "".join((written, marker, "\n".join(rows) + "\n"))


def _span(span: tuple[int, int] | None) -> str:
    if span is None:
        return "hidden"
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def _treatment(key: int) -> str:
    treated = "passed"
    if key in _TREATED:
        treated = _TREATED[key]
    elif key in HELD_APIS:
        treated = "passed; while the group is mirrored and not promoted: told to come again"
        treated += ", or to the source where it follows" if key in FOLLOWED_APIS else ""
    elif key in FOLLOWED_APIS:
        treated = "passed; to the source for a group that follows"
    elif key in REWRITTEN:
        treated = "passed; node ids and addresses of the answer rewritten"
    elif key in SASL_APIS:
        treated = "relayed to the target, or judged by the table of clients"
    elif key in TRANSACTION_APIS:
        treated = "to the cluster where the topics and groups of the transaction are"
    elif key in ADMIN_APIS:
        treated = "passed; for a mirrored topic refused until its promote"
        if key in BROKER_CONFIG_APIS:
            treated += "; brokers are named as each side knows them"
    elif key in QUORUM_APIS | BROKER_CONFIG_APIS:
        treated = "passed; brokers are named as each side knows them"
    reason = CAPPED.get(key, "")
    return treated + (f"; {reason}" if reason else "")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
