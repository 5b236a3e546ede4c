"""Whole migrations in which the only router dies by SIGKILL while the copy is held back: groups read all, in order.

    python -m tests.soak.kills [--seeds 10] [--kills 10] [--first 1]

Each seed is a migration on fresh clusters. `kmigrate run` is mirror, router and controller in a single process. The
link is throttled below the rate of the writers, so the copy falls behind, and two groups follow. In each group one
member stays on the source and commits beyond the copy. Each kill comes at a random moment; then the process starts
again, and a random member leaves and comes back, so that partitions move from the member on the source to members at
the router. In the end the throttle is taken away, the last members move, and groups and topics are promoted. The judge
is the sandbox's checker. The soak writes build/soak/kills.json; exit code 1 where a run is not clean.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kmigrate.errors import Failed
from kmigrate.sandbox.checker import Finding, Verdict
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, Family, ProducerSpec, TransactionalSpec
from tests.figures import save
from tests.integration.migration import Migration, fresh_migration, wait_until

__all__ = ["Report", "Run", "migrate"]

_TOPICS = ("orders", "payments")
_SETTINGS = "[promote]\nfence_timeout_s = 10.0\nstraggler_window_s = 2.0\n"
_HELD_BACK = "8kB"
"""About half of what the writers write in a second."""
_CATCH_UP_S = 300.0
_GROUPS: dict[str, tuple[Family, ...]] = {"billing": ("librdkafka", "aiokafka"), "audit": ("librdkafka", "librdkafka")}
"""The members that move to the router at the start, by group."""
_SETTINGS_OF_FAMILY: dict[Family, dict[str, Any]] = {"aiokafka": {"metadata_max_age_ms": 3000}}
_OF_SILENCE = "commit _WAIT_COORD"
"""The error of a member that has to commit at once while the only broker that the member knows is gone."""
_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


@dataclass
class Run:
    """A migration, and the judge's findings."""

    seed: int
    kills: int = 0
    furthest_behind: int = 0
    """Records that the copy was behind at most, as `status` says after each kill."""
    acked: int = 0
    anomalies: dict[str, Finding] = field(default_factory=dict)
    failed: str = ""
    """The reason for which the migration did not come to its end."""

    @property
    def clean(self) -> bool:
        return not self.failed and not set(self.anomalies) - {"group_rereads"}

    def judged(self, verdict: Verdict) -> None:
        self.acked = verdict.acked
        self.anomalies = dict(verdict.named)
        errors = verdict.findings["client_errors"]
        if errors.count == len(errors.examples) and all(text.endswith(_OF_SILENCE) for text in errors.examples):
            self.anomalies.pop("client_errors", None)


@dataclass
class Report:
    """All migrations of a soak."""

    runs: list[Run] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return all(run.clean for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        names = sorted({name for run in self.runs for name in run.anomalies})
        return {
            "clean": self.clean,
            "seconds": self.seconds,
            "seeds": len(self.runs),
            "kills": sum(run.kills for run in self.runs),
            "records": sum(run.acked for run in self.runs),
            "anomalies": {
                name: sum(run.anomalies[name].count for run in self.runs if name in run.anomalies) for name in names
            },
            "runs": [{**asdict(run), "clean": run.clean} for run in self.runs],
        }


def clients() -> list[ClientSpec]:
    members = [
        ConsumerSpec(f"{group}-{number}", family, group, _TOPICS, _settings_of(group, family))
        for group, families in _GROUPS.items()
        for number, family in enumerate((*families, "librdkafka"), start=1)
    ]
    return [
        ProducerSpec("p-rd", "librdkafka", "orders", 40.0),
        ProducerSpec("p-aio", "aiokafka", "orders", 20.0),
        TransactionalSpec("till", "payments", 20.0, records=5),
        *members,
    ]


def _settings_of(group: str, family: Family) -> dict[str, Any]:
    return _COOPERATIVE if group == "audit" else _SETTINGS_OF_FAMILY.get(family, {})


def _members(group: str) -> tuple[list[str], str]:
    """Return the members that move to the router at the start, and the member that stays."""
    names = [f"{group}-{number}" for number in range(1, len(_GROUPS[group]) + 2)]
    return names[:-1], names[-1]


def migrate(run: Migration, kills: int, found: Run) -> None:
    """Move an estate; the only router dies `kills` times while the copy is held back."""
    dice = random.Random(found.seed)
    run.make_topic("orders", 4)
    run.make_topic("payments", 2)
    traffic = run.run_clients(clients())
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("run")
    run.does("topic", "mirror", *_TOPICS)
    run.does("group", "mirror", *_GROUPS)
    moved = [name for group in _GROUPS for name in _members(group)[0]]
    for name in ("producers", "transactional", *moved):
        traffic.roll(name, run.routers)
    run.does("link", "throttle", _HELD_BACK)
    for _ in range(kills):
        time.sleep(dice.uniform(0.5, 3.0))
        run.kill("run")
        time.sleep(dice.uniform(0.0, 1.5))
        run.start("run")
        found.kills += 1
        come_and_go(run, dice.choice(moved), dice)
        found.furthest_behind = max(found.furthest_behind, behind(run))
    run.does("link", "throttle", "off")
    wait_until(lambda: behind(run) < 200, _CATCH_UP_S, lambda: f"the copy to catch up: {behind(run)}\n{run.logs()}")
    for group in _GROUPS:
        traffic.roll(_members(group)[1], run.routers)
    for group in _GROUPS:
        wait_until(lambda group=group: not on_source(run, group), 60, f"all members of {group} to move")  # type: ignore[misc]
    run.does("group", "promote", *_GROUPS, "--yes")
    run.does("promote", *_TOPICS, "--yes")
    run.writers_go_on(50)
    found.judged(run.judge(*_TOPICS))


def come_and_go(run: Migration, name: str, dice: random.Random) -> None:
    """Let a member leave, the clean or the hard way, and come back a moment later."""
    assert run.traffic is not None
    if dice.random() < 0.5:
        run.traffic.kill(name)
    else:
        run.traffic.stop(name, catch_up=0.0)
    time.sleep(dice.uniform(0.0, 2.0))
    run.traffic.start(run.routers, name)


def behind(run: Migration) -> int:
    """Return how many records the copy is behind the source."""
    return sum(topic["lag"] for topic in run.does("status")["topics"])


def on_source(run: Migration, group: str) -> int:
    """Return how many members of a group came through no router."""
    return sum(row["direct_members"] for row in run.does("status")["groups"] if row["group"] == group)


def play(seed: int, kills: int) -> Run:
    """Migrate on fresh clusters; a run that is not clean leaves its history in build/soak."""
    found = Run(seed)
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-kills-") as folder,
        fresh_migration(Path(folder), _SETTINGS) as run,
    ):
        try:
            migrate(run, kills, found)
        except (AssertionError, Failed) as error:
            found.failed = str(error)
        if not found.clean and (history := run.folder / "history.jsonl").exists():
            kept = Path("build") / "soak" / f"kills-{seed}.jsonl"
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(history, kept)
    return found


def main(words: Sequence[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=10, help="migrations, each with other moments")
    arguments.add_argument("--kills", type=int, default=10, help="kills of `kmigrate run` in each migration")
    arguments.add_argument("--first", type=int, default=1, help="the first seed")
    asked = arguments.parse_args(words)
    report, began = Report(), time.monotonic()
    for seed in range(asked.first, asked.first + asked.seeds):
        found = play(seed, asked.kills)
        report.runs.append(found)
        named = {name: finding.count for name, finding in found.anomalies.items()}
        outcome = "clean" if found.clean else f"NOT CLEAN: {found.failed[-2000:]}"
        behind_at_most = f"{found.furthest_behind:,} behind at most"
        sys.stderr.write(
            f"  seed {seed}: {outcome}; {found.kills} kills, {found.acked:,} acked, {behind_at_most}, {named}\n"
        )
    report.seconds = round(time.monotonic() - began, 1)
    path = save("soak/kills", report.as_json())
    sys.stderr.write(f"{path}: {sum(run.clean for run in report.runs)} of {len(report.runs)} clean\n")
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
