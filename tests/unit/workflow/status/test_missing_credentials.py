"""Clients as whom the routers cannot log in to a source: the finding, and the lines for the table of clients."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from kmigrate.model.presences import ClientWithoutCredential, RouterPresence
from kmigrate.workflow.status.missing_credentials import credential_findings, missing_credentials

READER = ClientWithoutCredential("readers", "billing-1", "10.0.0.5", "blue", "old", groups=("billing",))


def router(*clients: ClientWithoutCredential, name: str = "edge") -> RouterPresence:
    return RouterPresence(f"{name}-1", name, 0, 500, without_credential=clients)


def test_the_reports_of_all_routers_are_merged_by_link_and_principal() -> None:
    elsewhere = replace(READER, client_id="billing-2", host="10.0.0.6", writes=True, groups=("audit",))
    writer = replace(READER, principal="orders", client_id="", groups=(), writes=True)
    first, second = missing_credentials([router(READER), router(elsewhere, writer, name="edge-2")])
    assert (first.principal, first.clients) == ("orders", ("a client without a name at 10.0.0.5",))
    assert (second.principal, second.groups, second.writes) == ("readers", ("audit", "billing"), True)
    assert second.text == (
        "link blue: writes and requests of group audit and requests of group billing of billing-1 at 10.0.0.5, "
        "billing-2 at 10.0.0.6 (principal readers) are refused, because the routers' table has no credential for old"
    )
    assert missing_credentials([router()]) == ()


def test_the_lines_are_an_entry_of_the_table_whatever_the_principal_is_called() -> None:
    (found,) = missing_credentials([router(replace(READER, principal='CN="a b",O=Ü'))])
    (entry,) = tomllib.loads("\n".join(found.lines))["clients"].items()
    assert entry[0] == 'CN="a b",O=Ü'
    assert set(entry[1]["clusters"]["old"]) == {"sasl.mechanism", "sasl.username", "sasl.password"}
    (by_certificate,) = missing_credentials([router(replace(READER, asks_password=False))])
    assert by_certificate.lines[1:] == ('"ssl.certificate.location" = "…"', '"ssl.key.location" = "…"')


def test_doctor_warns_with_the_lines_or_names_the_entry_that_the_source_refuses() -> None:
    (missing,) = credential_findings([router(READER)])
    assert (missing.level, missing.ref) == ("warn", "client-without-credential")
    assert '[clients."readers".clusters."old"]; "sasl.mechanism"' in (missing.next_step)
    (refused,) = credential_findings([router(replace(READER, refusal="the broker refused the login"))])
    assert "old refuses the credential of the routers' table: the broker refused the login" in refused.what
    assert refused.next_step.startswith("correct the entry of readers in the routers' table of clients")
    (fine,) = credential_findings([router(name="edge-2"), router()])
    assert (fine.ref, fine.what) == ("credentials-known", "edge, edge-2: no client lacks a credential")


def test_four_clients_are_named_by_three_and_a_count() -> None:
    (found,) = missing_credentials([router(*(replace(READER, client_id=f"c{n}") for n in range(4)))])
    assert "c2 at 10.0.0.5 and 1 more (principal readers)" in found.text
