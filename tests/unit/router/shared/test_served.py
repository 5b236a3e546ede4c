"""A router's account of latencies, waits and errors: since the start, and of the last minute."""

from __future__ import annotations

from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code
from kmigrate.router.shared.served import ServedRequests


def test_answers_are_counted_by_latency_with_an_exact_sum() -> None:
    served = ServedRequests()
    for seconds in (0.0005, 0.001, 0.3, 40.0):
        served.answered(ApiKey.PRODUCE, seconds)
    (((api,), value),) = served.latencies()
    assert (api, value.count, round(value.total, 4)) == ("produce", 4, 40.3015)
    assert dict(value.buckets)[0.001] == 2
    assert dict(value.buckets)[0.5] == 3
    assert dict(value.buckets)[30.0] == 3


def test_errors_have_kafkas_names() -> None:
    served = ServedRequests()
    served.failed(ApiKey.FETCH, [Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_LEADER_OR_FOLLOWER])
    served.failed(ApiKey.HEARTBEAT, [11, 999])
    assert sorted(served.errors()) == [
        (("fetch", "NOT_LEADER_OR_FOLLOWER"), 2),
        (("heartbeat", "ERROR_999"), 1),
        (("heartbeat", "STALE_CONTROLLER_EPOCH"), 1),
    ]


def test_figures_of_the_last_minute_forget_what_came_before() -> None:
    served = ServedRequests()
    for second in range(40):
        served.answered(ApiKey.PRODUCE, 0.002)
        served.lately(float(second))
    served.held(ApiKey.PRODUCE, 1.5)
    served.failed(ApiKey.PRODUCE, [Code.INVALID_RECORD])
    (told,) = served.lately(41.0)
    assert (told.api, told.slowest_s, told.held, told.held_s) == ("produce", 0.0025, 1, 1.5)
    assert told.errors == {"INVALID_RECORD": 1}
    assert served.lately(75.0)[0].errors == {"INVALID_RECORD": 1}
    assert served.lately(120.0) == () or served.lately(120.0)[0].errors == {"INVALID_RECORD": 1}
    assert served.lately(155.0) == ()
    assert served.errors() == [(("produce", "INVALID_RECORD"), 1)], "a counter is never reset"


def test_apis_with_errors_are_told_before_the_busiest_and_a_report_is_short() -> None:
    served = ServedRequests()
    for key in (ApiKey.PRODUCE, ApiKey.FETCH, *range(8, 17)):
        for _ in range(int(key) + 1):
            served.answered(key, 0.1)
    served.failed(ApiKey.FIND_COORDINATOR, [Code.COORDINATOR_NOT_AVAILABLE])
    told = served.lately(0.0)
    assert [api.api for api in told][:2] == ["find_coordinator", "list_groups"]
    assert len(told) == 8
