"""The security keys of a cluster: same value for every client, files relative to the configuration, no secret shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kmigrate.config.load import load
from kmigrate.config.security import SECURITY_KEYS
from kmigrate.errors import UsageError
from kmigrate.model.security import Bearer, Login, Security, Tls

Write = Callable[[str], Path]
SCRAM = '"sasl.mechanism" = "SCRAM-SHA-512"\n"sasl.username" = "me"\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("PEM", encoding="utf-8")
    (tmp_path / "secret").write_text("s3cret\n", encoding="utf-8")

    def writing(text: str) -> Path:
        path = tmp_path / "kmigrate.toml"
        path.write_text(f'[clusters.a]\n"bootstrap.servers" = "h:1"\n{text}', encoding="utf-8")
        return path

    return writing


def security(path: Path, env: dict[str, str] | None = None) -> Security:
    return load(path, env or {}).cluster("a").security


def test_a_password_of_a_file_is_known_by_its_file_and_shown_nowhere(write: Write, tmp_path: Path) -> None:
    path = write(
        '"security.protocol" = "SASL_SSL"\n"ssl.ca.location" = "ca.pem"\n'
        + SCRAM
        + '"sasl.password" = { file = "secret" }\n'
    )
    found = security(path)
    assert found.protocol == "SASL_SSL"
    assert found.tls == Tls(ca_file=str(tmp_path / "ca.pem"))
    assert isinstance(found.sasl, Login)
    assert (found.sasl.password_file, str(found.sasl.password)) == (str(tmp_path / "secret"), "s3cret")
    assert "s3cret" not in f"{load(path, {})!r} {found} {found.sasl}"
    assert dict(found.librdkafka()) == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "s3cret",
    }


def test_a_client_certificate_needs_no_name(write: Write, tmp_path: Path) -> None:
    found = security(
        write(
            '"security.protocol" = "ssl"\n"ssl.certificate.location" = "cert.pem"\n"ssl.key.location" = "key.pem"\n'
            '"ssl.key.password" = { env = "KP" }\n"ssl.endpoint.identification.algorithm" = "none"\n'
        ),
        {"KP": "k3y"},
    )
    assert found == Security(
        Tls(
            cert_file=str(tmp_path / "cert.pem"),
            key_file=str(tmp_path / "key.pem"),
            key_password="k3y",
            check_host=False,
        )
    )
    assert "k3y" not in repr(found)


def test_a_token_comes_from_a_file_or_a_command(write: Write, tmp_path: Path) -> None:
    start = '"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "OAUTHBEARER"\n'
    assert security(write(start + '"sasl.oauthbearer.token.file" = "secret"')).sasl == Bearer(str(tmp_path / "secret"))
    command = '"sasl.oauthbearer.token.command" = "fetch-token --for \'a b\'"'
    assert security(write(start + command)).sasl == Bearer("", ("fetch-token", "--for", "a b"))


def test_a_variable_gives_the_password(write: Write) -> None:
    path = write('"security.protocol" = "SASL_PLAINTEXT"\n' + SCRAM)
    settings = load(path, {"KMIGRATE_CLUSTERS__A__SASL_PASSWORD": "from-env"})
    sasl = settings.cluster("a").security.sasl
    assert isinstance(sasl, Login)
    assert (str(sasl.password), sasl.password_file) == ("from-env", "")
    assert "from-env" not in repr(settings)


SASL = '"security.protocol" = "SASL_PLAINTEXT"\n'


@pytest.mark.parametrize(
    ("text", "named", "expected"),
    [
        ('"security.protocol" = "TLS"', "found 'TLS'", "SASL_SSL"),
        ('"sasl.username" = "x"', "not used with security.protocol PLAINTEXT", "SASL_PLAINTEXT"),
        ('"security.protocol" = "SSL"\n"sasl.username" = "x"', "not used with security.protocol SSL", "SASL_SSL"),
        (SASL + '"ssl.ca.location" = "ca.pem"', "not used with security.protocol SASL_PLAINTEXT", "SSL or SASL_SSL"),
        (SASL, "sasl.mechanism is missing", "SCRAM-SHA-512"),
        (SASL + '"sasl.mechanism" = "SCRAM-SHA-1"', "'SCRAM-SHA-1'", "SCRAM-SHA-256"),
        (SASL + '"sasl.mechanism" = "PLAIN"\n"sasl.username" = "me"', "sasl.password is missing", "a password"),
        (SASL + '"sasl.mechanism" = "OAUTHBEARER"', "token.file or .command", "a token"),
        (
            SASL + SCRAM + '"sasl.password" = "x"\n"sasl.oauthbearer.token.file" = "secret"',
            "not used with SCRAM",
            "OAUTH",
        ),
        ('"security.protocol" = "SSL"\n"ssl.ca.location" = "gone.pem"', "gone.pem is no file", "authorities"),
        ('"security.protocol" = "SSL"\n"ssl.key.location" = "key.pem"', "other half is missing", "together"),
        ('[clusters.a.admin]\n"sasl.password" = "x"', "[clusters.a.admin] sasl.password", "own section"),
    ],
)
def test_every_mistake_is_named_with_what_is_expected(write: Write, text: str, named: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(write(text), {})
    assert named in caught.value.what
    assert expected in caught.value.next_step
    assert caught.value.exit_code == 2


def test_kerberos_is_refused_with_the_way_around_it(write: Write) -> None:
    with pytest.raises(UsageError, match="kerberos-not-supported") as caught:
        load(write(SASL + '"sasl.mechanism" = "GSSAPI"'), {})
    assert "SCRAM-SHA-512" in caught.value.next_step


def test_every_security_key_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert [key for key in SECURITY_KEYS if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("ssl.truststore.location", '"ssl.ca.location"'),
        ("ssl.keystore.location", '"ssl.certificate.location" and "ssl.key.location"'),
        ("ssl.keystore.password", '"ssl.key.password"'),
        ("sasl.jaas.config", '"sasl.username" and "sasl.password"'),
        ("sasl.oauthbearer.token.endpoint.url", '"sasl.oauthbearer.token.command"'),
    ],
)
def test_a_setting_of_java_clients_is_refused_with_the_key_that_stands_for_it(
    tmp_path: Path, key: str, ours: str
) -> None:
    file = tmp_path / "kmigrate.toml"
    file.write_text(f'[clusters.c]\n"bootstrap.servers" = "h:1"\n"{key}" = "x"\n', encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        load(file, {})
    assert refused.value.ref == "unknown-config-key"
    assert f"kmigrate reads {ours} (" in refused.value.what
    assert "did you mean" not in refused.value.what


_SASL = '"security.protocol" = "SASL_PLAINTEXT"\n"sasl.username" = "u"\n"sasl.password" = "p"\n'


def test_both_of_librdkafkas_names_of_the_mechanism_are_read(tmp_path: Path) -> None:
    file = tmp_path / "kmigrate.toml"
    text = f'[clusters.c]\n"bootstrap.servers" = "h:1"\n{_SASL}"sasl.mechanisms" = "PLAIN"\n'
    file.write_text(text, encoding="utf-8")
    sasl = load(file, {}).cluster("c").security.sasl
    assert sasl is not None
    assert sasl.mechanism == "PLAIN"
    file.write_text(f'{text}"sasl.mechanism" = "PLAIN"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="is given, too"):
        load(file, {})


def test_a_protocol_before_an_address_is_read_where_it_fits_and_refused_by_name_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "kmigrate.toml"
    address = '"bootstrap.servers" = "SASL_PLAINTEXT://one:1,two:2"\n'
    file.write_text(f'[clusters.c]\n{address}{_SASL}"sasl.mechanism" = "PLAIN"\n', encoding="utf-8")
    assert load(file, {}).cluster("c").bootstrap == (("one", 1), ("two", 2))
    file.write_text(f"[clusters.c]\n{address}", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        load(file, {})
    assert "names protocol SASL_PLAINTEXT; security.protocol is PLAINTEXT" in refused.value.what
    assert '"security.protocol" = "SASL_PLAINTEXT"' in refused.value.next_step
