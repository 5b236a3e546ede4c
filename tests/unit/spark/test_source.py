"""Client settings: librdkafka's names become the Java client's, and secrets stay out of sight."""

from pathlib import Path

import pytest

from kmigrate.errors import UsageError
from kmigrate.parity.verdict import Fingerprint
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.source import FINGERPRINT


def test_a_plain_cluster_needs_its_bootstrap_only() -> None:
    options = KafkaOptions.from_librdkafka({"bootstrap.servers": "a:1,b:2", "linger.ms": "5"})
    assert options.java() == {"bootstrap.servers": "a:1,b:2"}


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", "PlainLoginModule"), ("SCRAM-SHA-512", "ScramLoginModule")]
)
def test_a_user_and_password_become_a_login_module(mechanism: str, module: str) -> None:
    given = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": mechanism,
        "sasl.username": "me",
        "sasl.password": 'a"b\\c',
    }
    java = KafkaOptions.from_librdkafka(given).java()
    assert java["security.protocol"] == "SASL_SSL"
    assert java["sasl.mechanism"] == mechanism
    assert f".{module} required" in java["sasl.jaas.config"]
    assert java["sasl.jaas.config"].endswith('username="me" password="a\\"b\\\\c";')


def test_a_login_that_the_java_client_can_not_be_given_is_refused() -> None:
    given = {"bootstrap.servers": "a:1", "sasl.mechanism": "OAUTHBEARER", "sasl.username": "me"}
    with pytest.raises(UsageError, match="parity-sasl-mechanism"):
        KafkaOptions.from_librdkafka(given)


def test_certificates_are_handed_over_as_pem(tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_text("CHAIN")
    key.write_text("KEY")
    given = {
        "bootstrap.servers": "a:1",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": str(chain),
        "ssl.key.location": str(key),
        "ssl.key.password": "secret",
    }
    assert KafkaOptions.from_librdkafka(given).settings == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CHAIN",
        "ssl.keystore.key": "KEY",
        "ssl.key.password": "secret",
    }


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(KafkaOptions("a:1", {"sasl.jaas.config": "secret"}))


def test_the_columns_read_are_the_fields_of_a_fingerprint() -> None:
    assert len(FINGERPRINT) == len(Fingerprint._fields)


def test_another_host_name_is_accepted_by_javas_empty_word() -> None:
    given = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    assert KafkaOptions.from_librdkafka(given).settings["ssl.endpoint.identification.algorithm"] == ""
