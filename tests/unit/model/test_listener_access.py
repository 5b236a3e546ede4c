"""The identity of a client at each cluster, and routers that would lend a client the rights of another user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.errors import Refused
from kmigrate.model.listener_access import NOBODY, OPEN_ACCESS, ClientEntry, Identity, ListenerAccess, check_access
from kmigrate.model.security import Bearer, Login, Security, Tls
from kmigrate.model.settings import ClusterSettings

OURS = Login("SCRAM-SHA-512", "kmigrate", "ours")
THEIRS = Login("PLAIN", "orders", "theirs")
OPEN = ClusterSettings("open", (("o", 1),), security=Security(Tls("ca.pem")))
ASKING = ClusterSettings("asking", (("a", 1),), security=Security(Tls("ca.pem"), OURS))
CERTIFIED = ClusterSettings("certified", (("c", 1),), security=Security(Tls("ca.pem", "our.pem", "our.key")))
MAPPED = Security(Tls("ca.pem"), Login("PLAIN", "o", "p"))
ENTRY = ClientEntry("orders", "pen", upstream={"asking": MAPPED})
ANYBODY = ClientEntry("*", upstream={"asking": replace(MAPPED, sasl=Bearer("token"))})


def test_a_client_meets_a_cluster_by_the_table_then_by_its_own_credential_then_as_anybody() -> None:
    assert Identity("orders", THEIRS, ENTRY, ANYBODY).at(ASKING) == MAPPED
    assert Identity("orders", THEIRS, None, ANYBODY).at(ASKING) == Security(Tls("ca.pem"), THEIRS)
    assert Identity("orders", None, None, ANYBODY).at(ASKING) == ANYBODY.upstream["asking"]


def test_nobody_is_ever_lent_our_own_credential() -> None:
    for identity in (NOBODY, Identity("orders"), Identity("orders", THEIRS), Identity("orders", entry=ENTRY)):
        for cluster in (ASKING, CERTIFIED):
            found = identity.at(cluster)
            assert found is None or (found.sasl is not OURS and not (found.tls and found.tls.cert_file))
    assert Identity("orders", THEIRS).at(CERTIFIED) is None
    assert NOBODY.at(OPEN) == OPEN.security


def test_the_entry_for_anybody_is_not_a_clients_name() -> None:
    access = ListenerAccess(mechanisms=("PLAIN",), clients={"*": ANYBODY})
    assert access.named("*").entry is None
    assert access.named(None).fallback is ANYBODY


def test_a_newer_table_is_asked_for_the_same_client_and_lets_go_only_whom_a_table_judges() -> None:
    newer = ClientEntry("orders", "another", upstream={"asking": Security(Tls("ca.pem"), THEIRS)})
    mapped, passing = ListenerAccess(mechanisms=("PLAIN",), mapped=True), ListenerAccess(mechanisms=("PLAIN",))
    for access in (mapped, passing):
        found = replace(access, clients={"orders": newer}).still(Identity("orders", THEIRS, ENTRY))
        assert found == Identity("orders", THEIRS, newer)
    assert mapped.still(Identity("orders", entry=ENTRY)) is None
    assert passing.still(Identity("orders", THEIRS, ENTRY, ANYBODY)) == Identity("orders", THEIRS)


def test_a_client_whose_certificate_is_another_by_a_newer_table_is_let_go() -> None:
    entry = ClientEntry("o", certificate="CN=o")
    identity = ListenerAccess(clients={"o": entry}).holder("CN=o")
    assert identity is not None
    for certificate, stays in (("CN=o", True), ("CN=another", False), ("", False)):
        access = ListenerAccess(
            clients={"o": replace(entry, certificate=certificate), "p": ClientEntry("p", certificate="CN=p")}
        )
        assert (access.still(identity) is not None) is stays
    assert ListenerAccess(clients={"p": ClientEntry("p", certificate="CN=p")}).still(identity) is None


@pytest.mark.parametrize(
    ("access", "target", "source", "ref"),
    [
        (OPEN_ACCESS, OPEN, OPEN, None),
        (OPEN_ACCESS, ASKING, OPEN, "router-not-secure"),
        (OPEN_ACCESS, OPEN, ASKING, "router-not-secure"),
        (OPEN_ACCESS, CERTIFIED, OPEN, "router-not-secure"),
        (ListenerAccess(mechanisms=("PLAIN",)), ASKING, ASKING, None),
        (ListenerAccess(mechanisms=("PLAIN",)), OPEN, ASKING, "router-login-not-judged"),
        (ListenerAccess(mechanisms=("PLAIN",)), CERTIFIED, OPEN, "router-login-not-judged"),
        (ListenerAccess(mechanisms=("PLAIN",), mapped=True, clients={"orders": ENTRY}), ASKING, ASKING, None),
        (
            ListenerAccess(mechanisms=("PLAIN",), mapped=True, clients={"orders": ENTRY}),
            CERTIFIED,
            ASKING,
            "no-credential",
        ),
        (
            ListenerAccess(mechanisms=("PLAIN",), mapped=True, clients={"x": ClientEntry("x"), "*": ANYBODY}),
            ASKING,
            OPEN,
            None,
        ),
        (ListenerAccess(clients={"o": ClientEntry("o", certificate="CN=o")}), OPEN, ASKING, None),
        (ListenerAccess(clients={"o": ClientEntry("o", certificate="CN=o")}), ASKING, OPEN, "no-credential"),
    ],
)
def test_a_router_that_could_not_say_who_comes_does_not_start(
    access: ListenerAccess, target: ClusterSettings, source: ClusterSettings, ref: str | None
) -> None:
    if ref is None:
        check_access(access, target, [source])
        return
    with pytest.raises(Refused) as caught:
        check_access(access, target, [source])
    assert caught.value.ref == ref
    assert caught.value.still_true
    assert "docs/security.md" in caught.value.next_step
