"""The listeners of `[router]` and the table of clients: a single value, each mistake named, no secret shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kmigrate.config.listener_access import access_of
from kmigrate.config.load import load
from kmigrate.errors import UsageError
from kmigrate.model.listener_access import MECHANISMS, OPEN_ACCESS, ListenerAccess, ListenerTls
from kmigrate.model.security import Bearer, Login, Tls

CLUSTERS = (
    '[clusters.old]\n"bootstrap.servers" = "o:1"\n"security.protocol" = "SASL_SSL"\n"ssl.ca.location" = "ca.pem"\n'
    '"sasl.mechanism" = "SCRAM-SHA-512"\n"sasl.username" = "kmigrate"\n"sasl.password" = "k"\n'
    '[clusters.new]\n"bootstrap.servers" = "n:1"\n"security.protocol" = "SSL"\n"ssl.ca.location" = "ca.pem"\n'
    '"ssl.certificate.location" = "cert.pem"\n"ssl.key.location" = "key.pem"\n'
)
TLS = 'security_protocol = "SASL_SSL"\ncertificate = "cert.pem"\nkey = "key.pem"\n'
TABLE = (
    '[clients.orders]\npassword = { file = "secret" }\n'
    '[clients.orders.clusters.old]\n"sasl.mechanism" = "PLAIN"\n"sasl.username" = "o"\n"sasl.password" = "p4ss"\n'
    '[clients.orders.clusters.new]\n"ssl.certificate.location" = "own.pem"\n"ssl.key.location" = "own.key"\n'
)
Read = Callable[..., ListenerAccess]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    for name in ("ca.pem", "cert.pem", "key.pem", "own.pem", "own.key"):
        (tmp_path / name).write_text("PEM", encoding="utf-8")
    (tmp_path / "secret").write_text("s3cret\n", encoding="utf-8")

    def reading(router: str, table: str | None = None, env: dict[str, str] | None = None) -> ListenerAccess:
        path = tmp_path / "kmigrate.toml"
        if table is not None:
            (tmp_path / "clients.toml").write_text(table, encoding="utf-8")
            router += 'credentials = "clients.toml"\n'
        path.write_text(f"{CLUSTERS}[router]\n{router}", encoding="utf-8")
        settings = load(path, env or {})
        assert "s3cret" not in repr(settings)
        return access_of(settings, env or {})

    return reading


def test_a_router_that_says_nothing_asks_nobody(read: Read) -> None:
    assert read("") == OPEN_ACCESS
    assert not read("").identifies


def test_logins_are_passed_through_unless_a_table_judges_them(read: Read, tmp_path: Path) -> None:
    access = read(TLS)
    assert (access.mechanisms, access.mapped, dict(access.clients)) == (MECHANISMS, False, {})
    assert access.tls == ListenerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    chosen = read(TLS + 'sasl_mechanisms = ["scram-sha-512"]\nkey_password = { env = "KEY" }', env={"KEY": "s3cret"})
    assert chosen.mechanisms == ("SCRAM-SHA-512",)
    assert chosen.tls is not None
    assert chosen.tls.key_password == "s3cret"
    assert "s3cret" not in repr(chosen)


def test_a_client_of_the_table_meets_each_cluster_by_its_own_credential_and_the_clusters_trust(
    read: Read, tmp_path: Path
) -> None:
    access = read(TLS + 'login = "mapped"\n', TABLE)
    assert access.mapped
    assert "OAUTHBEARER" not in access.mechanisms
    orders = access.clients["orders"]
    assert orders.password == "s3cret"
    ca = str(tmp_path / "ca.pem")
    old, new = orders.upstream["old"], orders.upstream["new"]
    assert (old.tls, old.sasl) == (Tls(ca), Login("PLAIN", "o", "p4ss"))
    assert (new.tls, new.sasl) == (Tls(ca, str(tmp_path / "own.pem"), str(tmp_path / "own.key")), None)
    assert not [word for word in ("s3cret", "p4ss") if word in repr(access)]
    assert access.files == (str(tmp_path / "clients.toml"), str(tmp_path / "secret"))


def test_a_client_may_meet_a_source_by_a_token_that_a_command_prints(read: Read) -> None:
    table = (
        '[clients."*".clusters.old]\n"sasl.mechanism" = "OAUTHBEARER"\n'
        '"sasl.oauthbearer.token.command" = "aws-msk-token --region eu-1"\n'
    )
    access = read(TLS, table)
    bearer = access.clients["*"].upstream["old"].sasl
    assert bearer == Bearer(token_command=("aws-msk-token", "--region", "eu-1"))
    assert access.named("anybody").fallback is access.clients["*"]


def test_clients_are_known_by_certificates_where_no_login_is_asked_for(read: Read) -> None:
    section = TLS.replace("SASL_SSL", "SSL") + 'client_ca = "ca.pem"\n'
    access = read(section, '[clients.orders]\ncertificate = "CN=orders,O=Example"\n')
    assert access.knows_certificates
    found = access.holder("CN=orders,O=Example")
    assert found is not None
    assert found.name == "orders"
    assert access.holder("CN=orders") is None
    assert access.holder("") is None


def test_a_certificate_may_be_demanded_beside_a_login_that_is_passed_through(read: Read, tmp_path: Path) -> None:
    access = read(TLS + 'client_ca = "ca.pem"\n')
    assert access.tls is not None
    assert (access.tls.client_ca, access.asks, access.mapped) == (str(tmp_path / "ca.pem"), True, False)
    assert not access.knows_certificates


@pytest.mark.parametrize(
    ("router", "table", "words", "expected"),
    [
        ('certificate = "cert.pem"', None, "[router] certificate", "SSL or SASL_SSL"),
        ('login = "mapped"', None, "[router] login", "SASL_SSL or SASL_PLAINTEXT"),
        ("", TABLE, "[router] credentials", "SASL_SSL, SASL_PLAINTEXT or SSL"),
        ('security_protocol = "SSL"\nkey = "key.pem"', None, "[router] certificate: it is missing", "PEM"),
        (TLS + 'client_ca = "gone.pem"', None, "gone.pem is no file", "a file"),
        (TLS + 'sasl_mechanisms = ["PLANE"]', None, "found 'PLANE'", "PLAIN, SCRAM-SHA-256"),
        (TLS + 'login = "mapped"\nsasl_mechanisms = ["OAUTHBEARER"]', TABLE, "cannot judge OAUTHBEARER", "PLAIN"),
        (TLS + 'login = "mapped"', None, "[router] credentials: it is missing", "a TOML file"),
        (TLS + 'login = "mapped"\n', "[clients", "clients.toml", "a TOML file"),
        (TLS + 'login = "mapped"\n', "", "has no client, and login is mapped", "[clients.NAME]"),
        (TLS, "[users.orders]", "[users] is none", "[clients.NAME]"),
        (TLS, TABLE, "[clients.orders]: it has a password that nobody asks for", "login is mapped"),
        (TLS + 'login = "mapped"\n', "[clients.orders]", "[clients.orders]: its password is missing", "a password"),
        (TLS, '[clients.orders]\npassphrase = "x"', "[clients.orders] passphrase", "password, certificate"),
        (TLS, '[clients.orders]\ncertificate = "CN=o"', "its certificate is never looked at", "client_ca"),
        (TLS, "[clients.orders.clusters.odl]", "no such cluster: did you mean 'old'", "one of new, old"),
        (TLS, '[clients.o.clusters.old]\n"ssl.ca.location" = "ca.pem"', "the same for all clients", "sasl."),
        (TLS, '[clients.o.clusters.new]\n"sasl.username" = "x"', "not used with security.protocol SSL", "SASL_SSL"),
        (TLS, '[clients.o.clusters.old]\n"sasl.username" = "x"', "sasl.mechanism is missing", "one of PLAIN"),
    ],
)  # fmt: skip
def test_every_mistake_names_its_place_and_what_is_expected(
    read: Read, router: str, table: str | None, words: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(router if router.endswith("\n") or not router else router + "\n", table)
    assert caught.value.ref == "bad-config-value"
    assert words in caught.value.what
    assert expected in caught.value.next_step
    assert "s3cret" not in str(caught.value)


def test_kerberos_is_refused_by_name(read: Read) -> None:
    with pytest.raises(UsageError, match="kerberos-not-supported") as caught:
        read(TLS + 'sasl_mechanisms = ["SCRAM-SHA-512", "GSSAPI"]')
    assert "tickets are for a broker's host name" in caught.value.what
