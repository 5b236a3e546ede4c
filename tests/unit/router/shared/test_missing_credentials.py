"""The account of clients as whom the router cannot log in to a source."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.presences import ClientWithoutCredential
from kmigrate.router.shared.missing_credentials import MissingCredentials

READER = ClientWithoutCredential("readers", "billing-1", "10.0.0.5", "blue", "old")
WRITER = replace(READER, client_id="orders-1", principal="orders", writes=True)


def test_a_client_is_new_once_and_again_with_another_reason() -> None:
    missing = MissingCredentials()
    assert missing.refused(READER, 0.0)
    assert not missing.refused(READER, 1.0)
    assert missing.refused(replace(READER, refusal="the source refused the login"), 2.0)
    assert missing.refused(replace(READER, host="10.0.0.6"), 3.0)
    assert missing.counts() == {"blue": 2}


def test_the_report_has_the_groups_that_follow_and_the_writes_of_links_that_take_them() -> None:
    missing = MissingCredentials()
    missing.refused(READER, 0.0)
    assert missing.words({"blue"}, {"billing"}, 0.0) == (), "no request of a group and no write was refused"
    missing.refused(READER, 0.0)
    missing.refused(WRITER, 0.0)
    missing.of_group("blue", "billing-1", "billing")
    missing.of_group("blue", "billing-1", "audit")
    missing.refused(READER, 1.0)
    reader, writer = missing.words({"blue"}, {"billing", "audit"}, 1.0)[::-1]
    assert (reader, writer) == (replace(READER, groups=("audit", "billing")), WRITER)
    assert missing.words({"blue"}, {"audit"}, 1.0)[-1].groups == ("audit",)
    assert missing.words({"green"}, (), 1.0) == ()


def test_a_login_that_the_source_takes_ends_the_report_of_the_principal() -> None:
    missing = MissingCredentials()
    missing.refused(WRITER, 0.0)
    missing.accepted("green", "orders")
    assert missing.words({"blue"}, (), 0.0) == (WRITER,)
    missing.accepted("blue", "orders")
    assert missing.words({"blue"}, (), 0.0) == ()
    assert missing.refused(WRITER, 1.0)


def test_another_table_and_ten_minutes_without_a_refusal_end_the_report() -> None:
    missing = MissingCredentials()
    missing.refused(WRITER, 0.0)
    missing.clear()
    assert missing.words({"blue"}, (), 0.0) == ()
    missing.refused(WRITER, 0.0)
    assert missing.words({"blue"}, (), 600.0) == (WRITER,)
    assert missing.words({"blue"}, (), 600.1) == ()


def test_a_thousand_clients_are_kept_and_twenty_are_told() -> None:
    missing = MissingCredentials()
    for number in range(1_100):
        missing.refused(replace(WRITER, client_id=f"orders-{number}"), 0.0)
    assert missing.counts() == {"blue": 1_000}
    assert len(missing.words({"blue"}, (), 0.0)) == 20
