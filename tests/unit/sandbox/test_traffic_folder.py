"""The traffic folder remembers its clients for any later process, and knows which groups are behind."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kmigrate.errors import Failed, Refused, UsageError
from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec, demo_clients
from kmigrate.sandbox.history import HistoryWriter
from kmigrate.sandbox.processes import identify
from kmigrate.sandbox.traffic import Client, Progress, Traffic

NOWHERE = "127.0.0.1:1"


def test_a_folder_without_traffic_is_refused_with_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="kmigrate sandbox traffic start"):
        Traffic(tmp_path)


def test_clients_are_remembered_across_processes(tmp_path: Path) -> None:
    Traffic.create(tmp_path, demo_clients())
    rows = Traffic(tmp_path).status()
    assert [row["name"] for row in rows] == [spec.name for spec in demo_clients()]
    assert not any(row["running"] for row in rows)


def test_two_clients_of_one_name_are_refused(tmp_path: Path) -> None:
    spec = ProducerSpec("a", "librdkafka", "orders", 1)
    with pytest.raises(UsageError, match="share a name"):
        Traffic.create(tmp_path, [spec, spec])


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    Traffic.create(tmp_path, demo_clients())
    state = json.loads((tmp_path / "traffic.json").read_text())
    (tmp_path / "traffic.json").write_text(json.dumps({**state, "version": 99}))
    with pytest.raises(Refused, match="another version"):
        Traffic(tmp_path).clients()


def test_an_unknown_selector_names_the_clients_there_are(tmp_path: Path) -> None:
    traffic = Traffic.create(tmp_path, demo_clients())
    with pytest.raises(UsageError, match="shop-1, shop-2"):
        traffic.roll("nobody", NOWHERE)


@pytest.mark.parametrize("selector", ["all", "consumer", "consumers", "billing", "billing-1", "librdkafka"])
def test_a_client_answers_to_its_name_role_family_and_group(selector: str) -> None:
    client = Client(ConsumerSpec("billing-1", "librdkafka", "billing", ("orders",)))
    assert client.answers_to(selector)
    assert not client.answers_to("producers")


def test_a_client_that_has_fallen_silently_is_named(tmp_path: Path) -> None:
    """The client was killed, or its library has crashed: the history just ends, and the judge finds no fault."""
    alive, fallen, unstarted = (ProducerSpec(name, "librdkafka", "orders", 1) for name in ("alive", "fallen", "new"))
    traffic = Traffic.create(tmp_path, [alive, fallen, unstarted])
    here = identify(os.getpid())
    assert here is not None
    clients = [Client(alive, 1, NOWHERE, here), Client(fallen, 1, NOWHERE, replace(here, started="before"))]
    state = json.loads((tmp_path / "traffic.json").read_text())
    state["clients"][:2] = [client.as_json() for client in clients]
    (tmp_path / "traffic.json").write_text(json.dumps(state))
    assert traffic.fallen() == ["fallen"]


def test_numbers_go_on_after_the_highest_one_that_any_run_named(tmp_path: Path) -> None:
    traffic = Traffic.create(tmp_path, demo_clients())
    assert traffic._next_seq("shop-1") == 0
    for run, seqs in ((1, (0, 1, 2)), (2, (3, 4))):
        with HistoryWriter(tmp_path / f"shop-1.{run}.jsonl", f"shop-1.{run}") as pen:
            for seq in seqs:
                pen.record("invoke", "send", topic="orders", partition=0, value=f"shop-1.{run}:{seq}")
            pen.record("invoke", "txn", topic="orders", txn=0, detail={"ask": "commit"})
    assert traffic._next_seq("shop-1") == 5


def test_a_client_that_dies_before_its_first_answer_is_reported_with_its_last_words(tmp_path: Path) -> None:
    broken = ProducerSpec("broken", "librdkafka", "orders", 1, settings={"no.such.setting": 1})
    traffic = Traffic.create(tmp_path, [broken], tied=True)
    with pytest.raises(Failed, match=r"no\.such\.setting"):
        traffic.start(NOWHERE)


def test_a_group_catches_up_as_its_members_write_down_what_they_read(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "w.jsonl", "shop-1.1")
    reader = HistoryWriter(tmp_path / "r.jsonl", "billing-1.1")
    progress = Progress({"billing": ("orders",), "audit": ("audit",)})

    writer.record("ok", "send", topic="orders", partition=2, offset=10, value="shop-1.1:0", records=5)
    writer.flush()
    progress.update(tmp_path.glob("*.jsonl"))
    assert progress.behind() == [("billing", "orders", 2, 15)]

    reader.record("ok", "poll", topic="orders", partition=2, offset=10, values=["a", "b"], group="billing")
    reader.flush()
    progress.update(tmp_path.glob("*.jsonl"))
    assert progress.behind() == [("billing", "orders", 2, 3)]

    reader.record("ok", "poll", topic="orders", partition=2, offset=12, values=["c", "d", "e"], group="billing")
    reader.flush()
    progress.update(tmp_path.glob("*.jsonl"))
    assert progress.behind() == []
    writer.close()
    reader.close()


def test_what_a_group_committed_it_need_not_read(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "p.jsonl", "preload", role="preload") as pen:
        pen.record("ok", "send", topic="orders", partition=0, offset=10, value="stock.1:0", records=5)
        pen.record("ok", "commit", group="billing", positions=[("orders", 0, 14)])
    progress = Progress({"billing": ("orders",)})
    progress.update([tmp_path / "p.jsonl"])
    assert progress.behind() == [("billing", "orders", 0, 1)]


def test_what_a_reset_led_a_group_past_it_need_not_read(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "p.jsonl", "operator") as pen:
        pen.record("ok", "send", topic="orders", partition=0, offset=10, value="stock.1:0", records=5)
        pen.record("ok", "reset", group="billing", positions=[("orders", 0, 14)])
    progress = Progress({"billing": ("orders",)})
    progress.update([tmp_path / "p.jsonl"])
    assert progress.behind() == [("billing", "orders", 0, 1)]


def test_a_line_that_is_still_being_written_is_taken_later(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    line = b'{"m":1,"t":1,"process":"p","type":"ok","f":"send","topic":"orders","partition":0,"offset":4}\n'
    progress = Progress({"billing": ("orders",)})
    path.write_bytes(line[:40])
    progress.update([path])
    assert progress.behind() == []
    path.write_bytes(line)
    progress.update([path])
    assert progress.behind() == [("billing", "orders", 0, 5)]
