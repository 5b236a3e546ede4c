"""The verb `link finish`, on a state log in memory.

Each guard refuses by name, the record is written once, and the wait ends by what routers report.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.client import LogOffset, ProducerState
from kmigrate.errors import Refused, UsageError, WaitTimedOut
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.patterns import NamePattern
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record, decode_record, encode_record
from kmigrate.model.records import RouterRecord, WayBack
from kmigrate.model.routes import written_shift
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import now_ms
from kmigrate.workflow import verbs
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads, ask_bootstraps, bootstrap_findings, host_and_port
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import finish, mirror
from tests.fakes.finishing import CLIENT, FINISHED, GROUP, LINK, ROUTER, TOPIC, WORD, Connections, run
from tests.fakes.proposals import run_verb


def test_a_finish_is_one_field_of_the_links_record_and_repeats_change_nothing() -> None:
    connections = Connections()
    assert connections.finish(plan=True).changes
    assert connections.finished_ms == 0
    assert connections.finish().applied
    when = connections.finished_ms
    assert when > 0
    again = connections.finish()
    assert (again.changes, again.findings[0].ref, connections.finished_ms) == ((), "already-finished", when)


def test_a_link_of_an_older_version_is_not_finished() -> None:
    told = encode_record(LINK)
    del told["finished_ms"]
    assert decode_record(told) == LINK


@pytest.mark.parametrize(
    ("records", "ref"),
    [
        ((replace(TOPIC, phase=TopicPhase.MIRRORING),), "topic-not-promoted"),
        ((replace(TOPIC, phase=TopicPhase.FENCED),), "topic-not-promoted"),
        ((replace(TOPIC, phase=TopicPhase.MIRRORING, forgotten_ms=7),), "being-forgotten"),
        ((TOPIC, replace(GROUP, phase=GroupPhase.MIRRORED, forgotten_ms=7)), "being-forgotten"),
        ((replace(TOPIC, unsettled=True),), "topic-not-settled"),
        ((TOPIC, replace(GROUP, phase=GroupPhase.MIRRORED)), "group-not-promoted"),
        ((replace(TOPIC, phase=TopicPhase.ROLLBACK_PENDING),), "topic-not-promoted"),
        ((), "nothing-mirrored"),
    ],
)
def test_what_still_needs_the_routers_is_named(records: tuple[Record, ...], ref: str) -> None:
    connections = Connections(LINK, ROUTER, *records)
    with pytest.raises(Refused) as caught:
        connections.finish()
    assert caught.value.ref == ref
    assert caught.value.still_true == "nothing was changed"
    assert caught.value.next_step
    assert connections.finished_ms == 0


ROLLED_BACK = replace(TOPIC, generation=1, partitions=1)
SHIFT = written_shift(LINK, ROLLED_BACK)


def former_ids(made: Plan) -> list[str]:
    return [each.level for each in made.findings if each.ref == "former-ids"]


def test_a_producer_that_the_target_knows_under_two_ids_holds_a_finish_back() -> None:
    connections = Connections(LINK, ROLLED_BACK, ROUTER)
    connections.producers = (ProducerState(SHIFT + 7, 0, 30, now_ms(), -1), ProducerState(7, 0, 3, 1, -1))
    with pytest.raises(Refused) as caught:
        connections.finish()
    assert caught.value.ref == "former-ids"
    assert "producer id 7" in caught.value.what
    assert "--accept-restarts" in caught.value.next_step
    assert former_ids(connections.finish(accept_restarts=True)) == ["warn"]


def test_such_a_producer_that_has_been_silent_is_named() -> None:
    connections = Connections(LINK, ROLLED_BACK, ROUTER)
    connections.producers = (ProducerState(SHIFT + 7, 0, 30, 2, -1), ProducerState(7, 0, 3, 1, -1))
    assert former_ids(connections.finish()) == ["warn"]


def test_a_producer_that_the_target_does_not_know_by_its_own_id_may_leave_the_routers() -> None:
    """The target takes any first sequence of an id that the partition does not know."""
    connections = Connections(LINK, ROLLED_BACK, ROUTER)
    connections.producers = (ProducerState(SHIFT + 7, 0, 30, now_ms(), -1), ProducerState(8, 0, 3, now_ms(), -1))
    assert former_ids(connections.finish()) == []


def test_a_finish_ends_each_way_back_before_clients_leave() -> None:
    connections = Connections(LINK, replace(TOPIC, way_back=WayBack({})), ROUTER)
    made = connections.finish()
    assert made.changes[0] == "end the way back of t"
    assert "way-back-ends" in [each.ref for each in made.findings]
    kinds = [type(each).__name__ for each in connections.log.history[-2:]]
    assert kinds == ["TopicRecord", "LinkRecord"]
    record = connections.log.state.topic("l", "t")
    assert record is not None
    assert record.way_back is not None
    assert record.way_back.ended == "ended by link finish"


def ends(offset: int) -> Any:
    async def log_ends(keys: Any) -> Any:
        return dict.fromkeys(keys, LogOffset(0, offset, 1))

    return SimpleNamespace(log_ends=log_ends)


def test_a_record_beyond_the_copy_to_the_source_holds_a_finish_back() -> None:
    connections = Connections(LINK, replace(TOPIC, way_back=WayBack({0: 5}), partitions=1), ROUTER)
    connections.target.log_ends = ends(7).log_ends

    async def source(_: Any) -> Any:
        return ends(8), None

    connections.source = source  # type: ignore[method-assign]
    with pytest.raises(Refused) as caught:
        connections.finish()
    assert caught.value.ref == "late-writes"
    assert "t-0: the source took offsets 7 to 7 after the flip" in caught.value.what
    assert connections.finish(accept_late=True).applied


def test_retries_of_writes_before_the_last_flip_are_waited_out() -> None:
    connections = Connections(LINK, TOPIC, replace(TOPIC, topic="late", promoted_ms=now_ms() - 20_000), ROUTER)
    with pytest.raises(Refused) as caught:
        connections.finish()
    assert caught.value.ref == "retries-not-over"
    assert "promote of late, for 100 s" in caught.value.what
    assert "repeat in 100 s" in caught.value.next_step
    assert connections.finish(delivery_s=19.0).applied


@pytest.mark.parametrize(
    ("words", "ref"),
    [
        ((), "router-silent"),
        ((replace(WORD, protocol="SASL_SSL"),), "protocol-differs"),
        ((replace(WORD, maps_clients=True),), "clients-mapped"),
    ],
)
def test_a_router_that_would_leave_clients_outside_is_named(words: tuple[RouterPresence, ...], ref: str) -> None:
    with pytest.raises(Refused) as caught:
        Connections(LINK, TOPIC, ROUTER, words=words).finish()
    assert caught.value.ref == ref
    assert caught.value.next_step


def test_processes_that_share_an_address_cannot_see_clients_off_together() -> None:
    """Processes behind a shared address cannot send their clients to the target together.

    The connections of a client are spread over the processes. A process would give the target's addresses while another
    process still has the client's writes.
    """
    second = RouterRecord("r-2", "r2", "host", ROUTER.bootstrap, 1)
    connections = Connections(LINK, TOPIC, ROUTER, second, words=(WORD, replace(WORD, instance="r2", name="r-2")))
    with pytest.raises(Refused) as refused:
        connections.finish()
    assert refused.value.ref == "address-shared"
    assert "r, r-2" in refused.value.what
    with pytest.raises(Refused, match="r, r-2"):
        Connections(FINISHED, TOPIC, ROUTER, second).finish()  # more processes were started after the finish
    elsewhere = replace(second, bootstrap="other:9092")
    Connections(LINK, TOPIC, ROUTER, elsewhere, words=(WORD, replace(WORD, instance="r2", name="r-2"))).finish()


def test_that_the_target_knows_the_clients_is_a_persons_word() -> None:
    connections = Connections(LINK, TOPIC, ROUTER, words=(replace(WORD, maps_clients=True),))
    with connections.asking():
        look = verbs.finish_link(connections, "l", [], 1.0, clients_known=True)  # type: ignore[arg-type]
        made = run(run_verb(look))
    assert made.applied
    assert ("warn", "clients-mapped") in {(f.level, f.ref) for f in made.findings}


def test_another_link_and_names_to_come_are_said_and_stop_nobody() -> None:
    other = replace(LINK, name="m")
    patterned = replace(LINK, topic_patterns=(NamePattern("a.*"),))
    made = Connections(patterned, other, TOPIC, replace(TOPIC, link="m", topic="u"), ROUTER).finish()
    assert made.applied
    assert {"other-link", "patterns-rest"} <= {f.ref for f in made.findings if f.level == "warn"}


def test_the_addresses_that_clients_hold_are_those_of_the_routers_unless_they_are_given() -> None:
    connections = Connections()
    connections.finish(plan=True)
    assert connections.addresses == ["router:9092"]
    connections.finish("kafka.example:9092", plan=True)
    assert connections.addresses == ["kafka.example:9092"]
    assert "no-bootstrap-known" in {f.ref for f in Connections(LINK, TOPIC).finish().findings}


@pytest.mark.parametrize(
    ("leads", "level", "ref"),
    [
        (Leads.TARGET, "ok", "bootstrap-stays"),
        (Leads.ROUTER, "warn", "bootstrap-at-router"),
        (Leads.ELSEWHERE, "refuse", "bootstrap-elsewhere"),
        (Leads.NOWHERE, "refuse", "bootstrap-silent"),
    ],
)
def test_where_a_bootstrap_address_leads_decides_what_is_said(leads: Leads, level: str, ref: str) -> None:
    (found,) = bootstrap_findings([Bootstrap("kafka:9092", leads, "told")], [("real", 9)])
    assert (found.level, found.ref) == (level, ref)
    assert "kafka:9092" in found.what
    assert level == "ok" or "real:9" in found.next_step


def test_an_address_where_nobody_answers_is_found_out_by_asking() -> None:
    async def ask() -> list[Bootstrap]:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        addresses = [f"127.0.0.1:{port}", "no-such-host.invalid:9092"]
        return await ask_bootstraps(Target(port), addresses)  # type: ignore[arg-type]

    assert [each.leads for each in run(ask())] == [Leads.NOWHERE, Leads.NOWHERE]


class Target:
    """A target whose broker addresses cannot be resolved from this machine."""

    def __init__(self, port: int) -> None:
        self.settings = ClusterSettings("t", (("127.0.0.1", port),))
        self.metadata = SimpleNamespace(brokers={1: ("no-such-host.invalid", 9)}, cluster_id="target-id")

    async def refresh(self, _: Any) -> None: ...


@pytest.mark.parametrize("text", ["kafka", ":9092", "kafka:", "kafka:0", "kafka:70000", "kafka:x", "kafka:٣"])
def test_what_is_no_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        host_and_port(text)
    assert caught.value.ref == "bad-address"


def test_addresses_have_a_host_and_a_port() -> None:
    assert [host_and_port(text) for text in ("kafka:9092", " [::1]:1 ")] == [("kafka", 9092), ("::1", 1)]


def test_a_finish_is_taken_back_while_a_router_runs() -> None:
    connections = Connections()
    connections.finish()
    assert run(run_verb(verbs.undo_finish(connections, "l"), plan=True)).changes  # type: ignore[arg-type]
    assert connections.finished_ms
    assert run(run_verb(verbs.undo_finish(connections, "l"))).applied  # type: ignore[arg-type]
    assert connections.finished_ms == 0
    assert not run(run_verb(verbs.undo_finish(connections, "l"))).changes  # type: ignore[arg-type]
    connections.finish()
    connections.log.silence(WORD.key)
    with pytest.raises(Refused) as caught:
        run(run_verb(verbs.undo_finish(connections, "l")))  # type: ignore[arg-type]
    assert caught.value.ref == "no-router"


def test_a_finished_link_stays_while_routers_do_and_mirrors_nothing_new() -> None:
    connections = Connections(FINISHED, TOPIC, ROUTER)
    for verb, ref in (
        (run_verb(verbs.delete_link(connections, "l", 1.0)), "routers-stay"),  # type: ignore[arg-type]
        (run_verb(verbs.mirror_topics(connections, "l", ["n"], "earliest", "auto")), "link-finished"),  # type: ignore[arg-type]
        (run_verb(verbs.mirror_groups(connections, "l", ["n"])), "link-finished"),  # type: ignore[arg-type]
    ):
        with pytest.raises(Refused) as caught:
            run(verb)
        assert caught.value.ref == ref


class Meanwhile(Connections):
    """Connections whose clusters have only the group `n` and the topic `n`.

    The link is finished while the clusters are asked.
    """

    def __init__(self) -> None:
        super().__init__(LINK, TOPIC, ROUTER)
        self.target_admin = None
        self.target.refresh, self.target.list_offsets = self.refresh, self.list_offsets

    async def source(self, _: Any) -> tuple[Meanwhile, Meanwhile]:
        return self, self

    async def refresh(self, _: Any) -> SimpleNamespace:
        self.log._put(FINISHED.key, FINISHED)
        return SimpleNamespace(topics={"n": SimpleNamespace(name="n", partitions={})})

    async def topic_configs(self, _: Any) -> dict[str, Any]:
        return {}

    async def list_offsets(self, _: Any) -> dict[str, Any]:
        return {}

    async def groups(self) -> dict[str, str]:
        self.log._put(FINISHED.key, FINISHED)
        return {"n": "stable"}


def test_a_link_that_is_finished_while_the_guards_look_mirrors_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_loops(*_: Any) -> list[Any]:
        return []

    async def no_readers(*_: Any) -> dict[str, list[str]]:
        return {}

    monkeypatch.setattr(mirror, "loop_findings", no_loops)
    monkeypatch.setattr(mirror, "readers_at", no_readers)
    connections = Meanwhile()
    with pytest.raises(Refused) as caught:
        run(run_verb(verbs.mirror_topics(connections, "l", ["n"], "earliest", "auto")))  # type: ignore[arg-type]
    assert (caught.value.ref, connections.log.state.topic("l", "n")) == ("link-finished", None)
    connections = Meanwhile()
    with pytest.raises(Refused) as caught:
        run(run_verb(verbs.mirror_groups(connections, "l", ["n"])))  # type: ignore[arg-type]
    assert (caught.value.ref, connections.log.state.group("l", "n")) == ("link-finished", None)


def _wait(connections: Connections, timeout: float, say: verbs.SayLeft = lambda _: None) -> None:
    run(verbs.wait_left(connections, "l", timeout, say))  # type: ignore[arg-type]


def test_the_wait_ends_when_nobody_is_left_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends after two seconds without clients; the clock moves by a second between two looks."""
    connections = Connections(FINISHED, TOPIC, ROUTER)
    counts = [2, 0, 0, 1, 0, 0, 0, 7]
    seen: list[int] = []

    async def next_word(_: float) -> None:
        connections.log.say(replace(WORD, on_brokers=counts[len(seen)]))

    monkeypatch.setattr(finish, "monotonic", lambda: 100.0 + len(seen))
    monkeypatch.setattr(connections.log, "changed", next_word)
    connections.log.say(replace(WORD, on_brokers=counts[0]))
    _wait(connections, 60.0, lambda left: seen.append(left.on_brokers))
    assert seen == [2, 0, 0, 1, 0, 0, 0], "a client that comes once more is waited for again"


def test_a_wait_that_takes_too_long_names_who_is_left() -> None:
    staying = replace(WORD, on_brokers=2, clients=(CLIENT,))
    connections = Connections(FINISHED, TOPIC, ROUTER, words=(staying,))
    with pytest.raises(WaitTimedOut) as caught:
        _wait(connections, 0.1)
    assert caught.value.ref == "clients-left"
    assert "app at 10.0.0.7 as User:app (librdkafka 2.8.0)" in caught.value.what
    assert "stays finished" in caught.value.still_true


def test_a_router_that_has_not_read_of_the_finish_is_waited_for() -> None:
    connections = Connections(FINISHED, TOPIC, ROUTER, words=(replace(WORD, applied=0),))
    with pytest.raises(WaitTimedOut) as caught:
        _wait(connections, 0.1)
    assert "router r " in caught.value.what


def test_while_another_link_keeps_the_clients_nobody_is_waited_for() -> None:
    records = (FINISHED, replace(LINK, name="m"), TOPIC, replace(TOPIC, link="m", topic="u"), ROUTER)
    _wait(Connections(*records, words=(replace(WORD, on_brokers=2),)), 0.0)
