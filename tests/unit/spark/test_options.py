"""A bearer's token in the form that Java's Kafka client reads."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from kmigrate.errors import UsageError
from kmigrate.spark.options import KafkaOptions
from tests.integration.secure_world import token

HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
GIVEN = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


def settings(text: str, file: str = "/tokens/one two") -> dict[str, str]:
    return dict(KafkaOptions.from_librdkafka(GIVEN, token=text, token_file=Path(file)).settings)


def test_a_signed_token_is_read_from_its_file_at_each_login() -> None:
    assert settings(token("me") + "c2lnbmVk") == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.token.endpoint.url": "file:///tokens/one%20two",
    }


def test_one_without_a_signature_is_made_anew_by_the_client_with_the_same_claims() -> None:
    claims = {"sub": 'a"b', "iat": 1, "exp": 2, "tenant": 7, "admin": True, "nested": {}}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    made = settings(f"eyJhbGciOiJub25lIn0.{body}.")
    assert made["sasl.jaas.config"].endswith(
        ' required unsecuredLoginStringClaim_sub="a\\"b" unsecuredLoginNumberClaim_tenant="7";'
    )
    assert "sasl.oauthbearer.token.endpoint.url" not in made


@pytest.mark.parametrize("text", ["", "opaque", "a.b.c", "a.bnVsbA.c"])
def test_what_is_no_json_web_token_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="parity-token"):
        settings(text)
