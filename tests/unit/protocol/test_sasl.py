"""SASL mechanisms by the examples of their RFCs, and against brokers that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kmigrate.errors import AuthenticationFailed
from kmigrate.protocol.sasl import OAuthBearer, Plain, Scram, expiry_of

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(password: str = "pencil", name: str = "SCRAM-SHA-256") -> Scram:
    return Scram(name, "user", password, NONCE)


def test_scram_sha_256_speaks_the_words_of_rfc_7677() -> None:
    login = scram()
    assert login.first() == b"n,,n=user,r=" + NONCE.encode()
    assert login.step(SERVER_FIRST) == CLIENT_FINAL
    assert login.step(SERVER_FINAL) is None


def test_scram_sha_512_is_accepted_by_a_server_written_from_rfc_5802() -> None:
    """The server follows RFC 5802's formulas: the server holds StoredKey and ServerKey, never the password."""
    salt, rounds, nonce = b"salty-salt", 8192, NONCE + "server"
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    stored_key = hashlib.sha512(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha512")

    login = scram(name="SCRAM-SHA-512")
    bare = login.first().removeprefix(b"n,,")
    challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={rounds}".encode()
    answer = login.step(challenge)
    assert answer is not None
    without_proof, proof = answer.rsplit(b",p=", 1)
    signed = b",".join([bare, challenge, without_proof])
    signature = hmac.digest(stored_key, signed, "sha512")
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(recovered).digest() == stored_key
    assert login.step(b"v=" + base64.b64encode(hmac.digest(server_key, signed, "sha512"))) is None


def test_a_user_name_cannot_break_out_of_its_field() -> None:
    assert Scram("SCRAM-SHA-512", "a,b=c", "p", "N").first() == b"n,,n=a=2Cb=3Dc,r=N"


def test_a_broker_that_does_not_know_the_password_is_found_out() -> None:
    login = scram("another")
    assert login.step(SERVER_FIRST) != CLIENT_FINAL
    with pytest.raises(AuthenticationFailed, match="broker-not-authentic"):
        login.step(SERVER_FINAL)


def test_a_refused_proof_is_told_in_the_brokers_words() -> None:
    login = scram()
    login.step(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=r"authentication-failed.*invalid-proof"):
        login.step(b"e=invalid-proof")


@pytest.mark.parametrize(
    ("challenge", "named"),
    [
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 SCRAM iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999"), "99999999 SCRAM iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-1"), "no number"),
        (SERVER_FIRST.replace(b",i=4096", b""), "no number"),
        (SERVER_FIRST.replace(b"r=rOp", b"r=xOp"), "nonce does not continue"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not continue"),
        (b"m=new," + SERVER_FIRST, "extension"),
        (SERVER_FIRST.replace(b"s=W22", b"s=*"), "salt"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==,", b""), "salt"),
        (b"\xff\xfe", "UTF-8"),
        (b"", "nonce"),
    ],
)
def test_a_cheating_first_word_of_the_broker_is_refused(challenge: bytes, named: str) -> None:
    with pytest.raises(AuthenticationFailed, match=named):
        scram().step(challenge)


@pytest.mark.parametrize("final", [b"", b"v=", b"v=*", b"v=AAAA", b"x"])
def test_a_last_word_without_the_right_signature_is_refused(final: bytes) -> None:
    login = scram()
    login.step(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed):
        login.step(final)


def test_plain_is_one_word_and_nothing_may_follow() -> None:
    login = Plain("me", "pä,ss")
    assert login.first() == "\0me\0pä,ss".encode()
    assert login.step(b"") is None
    with pytest.raises(AuthenticationFailed):
        login.step(b"more")
    with pytest.raises(AuthenticationFailed, match="zero byte"):
        Plain("me\0admin", "x")


def test_a_refused_token_is_answered_as_rfc_7628_asks() -> None:
    login = OAuthBearer("abc.def.")
    assert login.first() == b"n,,\x01auth=Bearer abc.def.\x01\x01"
    assert login.step(b"") is None
    assert login.step(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed):
        login.step(b"more")
    for bad in ("", "two words", "a\x01auth=Bearer b", "tök"):
        with pytest.raises(AuthenticationFailed, match="token"):
            OAuthBearer(bad)


def test_no_mechanism_shows_its_secret() -> None:
    for login in (Plain("me", "hidden-one"), scram("hidden-one"), OAuthBearer("hidden-one")):
        assert "hidden-one" not in f"{login!r} {login}"


def test_only_a_json_web_token_says_when_it_ends() -> None:
    claims = base64.urlsafe_b64encode(b'{"sub":"me","exp":1700000000}').decode().rstrip("=")
    assert expiry_of(f"eyJhbGciOiJub25lIn0.{claims}.") == 1_700_000_000
    for other in ("opaque", "a.b.c", f"{claims}.{claims}", "eyJhbGciOiJub25lIn0.e30."):
        assert expiry_of(other) is None
