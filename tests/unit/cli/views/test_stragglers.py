"""The table of the clients that pass the routers by."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from kmigrate.cli.views.stragglers import stragglers_view
from kmigrate.model.records import ClusterSide
from kmigrate.workflow.status.stragglers import Passing, PassingKind

NOW = 1_000_000
MEMBER = Passing(
    PassingKind.MEMBER,
    "blue",
    "billing",
    -1,
    ClusterSide.SOURCE,
    "billing-app",
    "/10.0.0.9",
    (),
    NOW,
    present=True,
    records=-1,
    missing=False,
    fate="its records are read twice",
    way_on="restart billing-app with the router's address",
)
LATE = Passing(
    PassingKind.LATE_WRITES,
    "blue",
    "paid",
    1,
    ClusterSide.SOURCE,
    "",
    "",
    (12,),
    NOW - 60_000,
    present=False,
    records=5_000,
    missing=True,
    fate="5,000 on the source alone",
    way_on="stop that producer",
)


def shown(*found: Passing, troubles: Mapping[str, str] | None = None) -> list[str]:
    console = Console(width=200)
    with console.capture() as text:
        console.print(stragglers_view(found, troubles or {}, NOW))
    return text.get().splitlines()


def test_each_straggler_has_a_line_and_each_next_step_is_said_once() -> None:
    lines = shown(LATE, LATE, MEMBER)
    late, _, member, *steps = [line.strip() for line in lines if line.strip()][2:]
    assert late.split("  ")[0] == "late-writes"
    for part in ("paid-1 on the source", "producer id 12", "ago", "5,000", "5,000 on the source alone"):
        assert part in late
    for part in ("group billing on the source", "billing-app at /10.0.0.9", "now", "its records are read twice"):
        assert part in member
    assert steps == ["next: stop that producer", "next: restart billing-app with the router's address"]


def test_without_stragglers_the_view_says_so_and_names_a_cluster_that_is_silent() -> None:
    assert [line.strip() for line in shown(troubles={"blue": "cluster old-dc does not answer"})] == [
        "! link blue: cluster old-dc does not answer",
        "no straggler has been seen",
    ]
