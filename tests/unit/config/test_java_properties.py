"""Property files of Java clients as keys of `[clusters.NAME]`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.config.java_properties import read_properties, translate_properties
from kmigrate.errors import UsageError

_TLS = {"security.protocol": "SSL"}
_SCRAM = r"""
# a comment
bootstrap.servers = new-1:9093,\
                    new-2:9093
security.protocol: SASL_SSL
sasl.mechanism SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
  username="kmigrate" \
  password="a \\"quoted\\" word";
ssl.truststore.type=PEM
ssl.truststore.location=ca.pem
ssl.endpoint.identification.algorithm=
acks=all
"""


def test_a_scram_client_is_translated(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(_SCRAM, encoding="utf-8")
    client = translate_properties(read_properties(file), str(file), tmp_path)
    assert client.keys == {
        "bootstrap.servers": "new-1:9093,new-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "kmigrate",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert {key: str(secret) for key, secret in client.secrets.items()} == {"sasl.password": 'a "quoted" word'}
    assert client.left_out == ("acks",)


def test_a_client_with_a_certificate_is_translated() -> None:
    given = {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/keys/client.pem",
        "ssl.key.password": "hush",
    }
    client = translate_properties(given, "f", Path("/here"))
    assert client.keys == {
        "security.protocol": "SSL",
        "ssl.certificate.location": "/keys/client.pem",
        "ssl.key.location": "/keys/client.pem",
    }
    assert {key: str(secret) for key, secret in client.secrets.items()} == {"ssl.key.password": "hush"}


def test_a_token_from_a_file_is_translated() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": "file:///run/token",
    }
    client = translate_properties(given, "f", Path())
    assert client.keys["sasl.oauthbearer.token.file"] == "/run/token"
    assert client.left_out == ()


def test_a_login_of_another_protocol_is_left_out() -> None:
    given = {"security.protocol": "SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": 'x password="hush"'}
    client = translate_properties(given, "f", Path())
    assert client.keys == {"security.protocol": "SSL"}
    assert client.left_out == ("sasl.jaas.config",)


def test_tls_settings_of_another_protocol_are_left_out() -> None:
    given = {"security.protocol": "PLAINTEXT", "ssl.endpoint.identification.algorithm": ""}
    client = translate_properties({**given, "ssl.truststore.location": "a.jks"}, "f", Path())
    assert client.keys == {"security.protocol": "PLAINTEXT"}
    assert client.left_out == ("ssl.endpoint.identification.algorithm", "ssl.truststore.location")


@pytest.mark.parametrize(
    ("given", "what", "next_step"),
    [
        (
            {**_TLS, "ssl.truststore.location": "my a.jks"},
            "is a store of type JKS",
            "keytool -exportcert -rfc -keystore 'my a.jks'",
        ),
        (
            {**_TLS, "ssl.keystore.location": "b.p12", "ssl.keystore.type": "PKCS12"},
            "is a store of type PKCS12",
            "openssl pkcs12",
        ),
        ({**_TLS, "ssl.truststore.certificates": "-----BEGIN"}, "holds PEM text", "a PEM file"),
        ({"sasl.jaas.config": "${file:/run/s:jaas}"}, "names a value of a config provider", "the value itself"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": 'x username="a"'},
            "names no password",
            "password=",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "needs a token",
            "a token file: sasl.oauthbearer.token.endpoint.url=file:///PATH",
        ),
    ],
)
def test_what_kmigrate_cannot_use_is_refused_with_the_way_on(given: dict[str, str], what: str, next_step: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate_properties(given, "client.properties", Path())
    assert caught.value.ref == "bad-properties"
    assert what in caught.value.what
    assert next_step in caught.value.next_step


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff", "not UTF-8"), (b"a=\\uZZZZ", "escape")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_properties(file)
    assert why in caught.value.what
