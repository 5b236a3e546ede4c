"""The server's half of SASL, against the client's half and against messages that no honest client sends."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kmigrate.errors import AuthenticationFailed
from kmigrate.protocol.sasl import OAuthBearer, Plain, Scram
from kmigrate.protocol.sasl_server import ScramKeys, ScramServer, bearer_token, plain_login, scram_name

SALT = b"0123456789abcdef"


def server(mechanism: str = "SCRAM-SHA-256", password: str = "pencil", name: str = "user") -> ScramServer:
    keys = ScramKeys.derive(mechanism, password, SALT, 4096)
    return ScramServer(mechanism, {name: keys}.get, "server-nonce")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_client_and_server_convince_each_other_only_by_the_same_password(mechanism: str) -> None:
    judge, client = server(mechanism, name="a,b=c"), Scram(mechanism, "a,b=c", "pencil", "nonce")
    challenge = judge.step(client.first())
    assert challenge is not None
    proof = client.step(challenge)
    assert proof is not None
    signature = judge.step(proof)
    assert signature is not None
    assert judge.accepted
    assert judge.name == "a,b=c"
    assert client.step(signature) is None  # the client checks that the server knows the password, too

    judge, client = server(mechanism), Scram(mechanism, "user", "pen", "nonce")
    proof = client.step(judge.step(client.first()) or b"")
    assert judge.step(proof or b"") is None
    assert not judge.accepted


def test_the_servers_words_are_those_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = ScramKeys.derive("SCRAM-SHA-256", "pencil", salt, 4096)
    judge = ScramServer("SCRAM-SHA-256", {"user": keys}.get, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert judge.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert judge.step(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"y,,n=user,r=abc",  # channel binding
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",  # a request to act as another user
        b"n,,n=user,r=abc,tokenauth=true",  # a delegation token, whose id is not a user
        b"n,,n=us=2Xer,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=nobody,r=abc",
        b"n,,r=abc,n=user",
    ],
)
def test_a_first_word_that_says_anything_else_is_refused(first: bytes) -> None:
    assert server().step(first) is None


def test_a_proof_must_answer_this_servers_challenge() -> None:
    for spoil in (
        lambda final: final.replace(b"server-nonce", b"server-n0nce"),
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.rsplit(b"p=", 1)[0] + b"p=AAAA",
        lambda final: final.rsplit(b"p=", 1)[0] + b"p=A",
        lambda _: b"",
    ):
        judge, client = server(), Scram("SCRAM-SHA-256", "user", "pencil", "nonce")
        proof = client.step(judge.step(client.first()) or b"") or b""
        assert judge.step(spoil(proof)) is None
        assert not judge.accepted


def test_what_a_server_keeps_does_not_hold_the_password() -> None:
    keys = ScramKeys.derive("SCRAM-SHA-512", "pencil", SALT, 4096)
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    assert keys.stored == hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    assert b"pencil" not in repr(keys).encode()


def test_names_passwords_and_tokens_are_read_out_of_what_clients_say_first() -> None:
    assert plain_login(Plain("user", "päss").first()) == ("user", "päss")
    assert plain_login(b"user\0user\0pass") == ("user", "pass")
    assert bearer_token(OAuthBearer("aaa.bbb.ccc").first()) == "aaa.bbb.ccc"
    assert bearer_token(b"n,,\x01traceId=1\x01auth=Bearer a-b_c~d/e+f=\x01\x01") == "a-b_c~d/e+f="
    assert scram_name(Scram("SCRAM-SHA-512", "a,b=c", "p", "N").first()) == "a,b=c"


@pytest.mark.parametrize(
    "word", [b"", b"a\0b", b"other\0user\0pass", b"\0\0pass", b"\0user\0", b"\0u\0p\0x", b"\0\xff\0p"]
)
def test_a_plain_word_that_names_nobody_or_somebody_else_is_none(word: bytes) -> None:
    assert plain_login(word) is None


def test_other_words_hold_no_name_and_no_token() -> None:
    assert scram_name(b"n,,n=id,r=N,tokenauth=true") is None
    assert bearer_token(b"n,,\x01auth=Basic abc\x01\x01") is None
    with pytest.raises(AuthenticationFailed):
        Plain("a\0b", "c")
