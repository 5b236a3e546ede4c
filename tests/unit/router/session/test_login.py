"""Logins through the router: requests before a login, the identities that the router believes, and the answers."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from kmigrate.errors import ProtocolViolation
from kmigrate.model.listener_access import ClientEntry, Identity, ListenerAccess
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.model.security import Bearer, Login, Security
from kmigrate.protocol.api import ApiKey, blank, decode_body, element_type, encode_body, entity, frame_answer
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import encode_request_head, peek_request, response_body_offset
from kmigrate.protocol.sasl import OAuthBearer, Plain, Scram
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.api_versions import common_api_versions
from tests.unit.router.router_fakes import Stage, batch, route

HANDSHAKE, AUTHENTICATE, VERSIONS, JOIN = 17, 36, 18, 11
ORDERS = ClientEntry("orders", "pencil", upstream={"target": Security(sasl=Login("PLAIN", "o", "p"))})
PASSING = ListenerAccess(mechanisms=("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"), clients={"orders": ORDERS})
MAPPED = ListenerAccess(mechanisms=("PLAIN", "SCRAM-SHA-256"), mapped=True, clients={"orders": ORDERS})


class Talk(Stage):
    """A client that speaks SASL, with the target's answers where a test gives them."""

    def ask(self, key: int, version: int, **values: Any) -> None:
        kind = entity(key, version, "request")
        body = encode_body(blank(kind, **values))
        self._correlation += 1
        raw = encode_request_head(key, version, self._correlation, b"c", bool(kind.__flexible__)) + body
        self.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))

    def target_answers(self, key: int, version: int, **values: Any) -> None:
        sent = self.edge.sent[-1]
        assert sent.done is not None
        message = blank(entity(key, version, "response"), **values)
        sent.done(Outcome(bytearray(frame_answer(message, self._correlation))))

    @property
    def keys_sent(self) -> list[int]:
        return [peek_request(sent.frame).api_key for sent in self.edge.sent]

    def answer(self, key: int, version: int) -> Any:
        """Return the last reply."""
        kind, frame = entity(key, version, "response"), self.edge.replies[-1]
        return decode_body(kind, frame, response_body_offset(frame, kind.__flexible__))

    def hears_a_refusal(self) -> None:
        """Check that the refusal comes a tenth of a second later, as from a broker, and not earlier."""
        heard, now = len(self.edge.replies), self.edge.clock
        assert self.edge.wakes.pop() == now + 0.1
        self.edge.clock = now + 0.09
        self.session.advance()
        assert (len(self.edge.replies), self.edge.closed) == (heard, [])
        self.edge.clock = now + 0.1
        self.session.advance()
        self.session.advance()
        assert (len(self.edge.replies), len(self.edge.closed)) == (heard + 1, 1)

    def relay(self, mechanism: str, *words: tuple[bytes, bytes], lifetime_ms: int = 0) -> None:
        """Log in with these pairs of client message and target message; the target accepts the login."""
        self.ask(HANDSHAKE, 1, mechanism=mechanism)
        self.target_answers(HANDSHAKE, 1, mechanisms=(mechanism,))
        for word, told in words:
            self.ask(AUTHENTICATE, 2, auth_bytes=word)
            lifetime = dt.timedelta(milliseconds=lifetime_ms)
            self.target_answers(AUTHENTICATE, 2, auth_bytes=told, session_lifetime=lifetime)


@pytest.mark.parametrize("access", [PASSING, MAPPED])
def test_before_a_login_only_its_own_words_are_heard(access: ListenerAccess) -> None:
    for key, version in ((ApiKey.METADATA, 9), (0, 9), (19, 5)):
        with pytest.raises(ProtocolViolation, match="before it was logged in"):
            Talk(access=access).ask(key, version)


@pytest.mark.parametrize("access", [PASSING, MAPPED])
@pytest.mark.parametrize("version", range(5))
def test_the_router_tells_by_itself_what_the_target_speaks_before_a_login(access: ListenerAccess, version: int) -> None:
    """A connection to the target per unauthenticated client would let anybody open connections there."""
    kind = entity(VERSIONS, 4, "response")
    keys, feature = element_type(kind, "api_keys"), element_type(kind, "finalized_features")
    spans = {0: (3, 13), ApiKey.METADATA: (0, 10), 27: (0, 1), HANDSHAKE: (0, 1)}
    named = tuple(blank(keys, api_key=key, min_version=low, max_version=high) for key, (low, high) in spans.items())
    hidden = (blank(feature, name="transaction.version", max_version_level=2),)
    talk = Talk(access=access)
    talk.backend.told_versions = blank(kind, api_keys=named, finalized_features=hidden)
    talk.ask(VERSIONS, version, client_software_name="c", client_software_version="1")
    frame, kind = talk.edge.replies[-1], entity(VERSIONS, version, "response")
    answer: Any = decode_body(kind, frame, 8)
    told = {int(key.api_key): (int(key.min_version), int(key.max_version)) for key in answer.api_keys}
    assert told == {0: (3, 11), ApiKey.METADATA: (0, 10), HANDSHAKE: (0, 1)}
    assert not getattr(answer, "finalized_features", ())
    assert talk.edge.sent == []


def test_brokers_of_two_versions_are_told_as_what_both_speak() -> None:
    kind = entity(VERSIONS, 3, "response")
    keys = element_type(kind, "api_keys")

    def told(**spans: tuple[int, int]) -> Any:
        named = (blank(keys, api_key=int(k[1:]), min_version=a, max_version=b) for k, (a, b) in spans.items())
        return blank(kind, api_keys=tuple(named))

    both = common_api_versions([told(a0=(3, 11), a1=(4, 18), a2=(0, 1)), told(a0=(0, 9), a2=(2, 3))])
    assert [(int(k.api_key), int(k.min_version), int(k.max_version)) for k in both.api_keys] == [(0, 3, 9)]


def test_a_client_that_does_not_wait_for_its_login_is_not_heard() -> None:
    talk = Talk(access=PASSING)
    talk.ask(HANDSHAKE, 1, mechanism="PLAIN")
    with pytest.raises(ProtocolViolation, match="did not wait"):
        talk.ask(AUTHENTICATE, 2, auth_bytes=b"\0orders\0x")
    assert len(talk.edge.sent) == 1


def test_words_are_relayed_as_they_are_and_believed_when_the_target_does() -> None:
    talk = Talk(access=PASSING)
    talk.relay("PLAIN", (Plain("mover", "secret").first(), b""))
    assert talk.session.logged_in
    assert talk.edge.identities == [Identity("mover", Login("PLAIN", "mover", "secret"))]
    assert b"secret" in talk.edge.sent[-1].frame
    assert "secret" not in repr(talk.edge.identities)

    talk = Talk(access=PASSING)
    client = Scram("SCRAM-SHA-512", "orders", "pencil", "N")
    talk.relay("SCRAM-SHA-512", (client.first(), b"r=Nx,s=c2FsdA==,i=4096"), (b"c=biws,r=Nx,p=AAAA", b"v=AAAA"))
    assert talk.edge.identities == [Identity("orders", None, ORDERS)]

    talk = Talk(access=PASSING)
    talk.relay("OAUTHBEARER", (OAuthBearer("a.b.c").first(), b""))
    assert talk.edge.identities == [Identity("", Bearer(token="a.b.c"))]
    assert "a.b.c" not in repr(talk.edge.identities)


def test_a_name_is_worth_nothing_until_the_target_has_had_its_last_word() -> None:
    talk = Talk(access=PASSING)
    talk.relay("SCRAM-SHA-512", (Scram("SCRAM-SHA-512", "orders", "p", "N").first(), b"r=Nx,s=c2FsdA==,i=4096"))
    assert not talk.session.logged_in
    talk.ask(AUTHENTICATE, 2, auth_bytes=b"c=biws,r=Nx,p=AAAA")
    talk.target_answers(AUTHENTICATE, 2, error_code=58, error_message="the broker's own words")
    assert talk.answer(AUTHENTICATE, 2).error_message == "the broker's own words"
    assert talk.edge.identities == []
    assert dict(talk.shared.failed_logins) == {"SCRAM-SHA-512": 1}

    talk = Talk(access=PASSING)  # A refusal of a bearer token begins without an error.
    talk.relay("OAUTHBEARER", (OAuthBearer("a.b.c").first(), b'{"status":"invalid_token"}'))
    assert not talk.session.logged_in
    with pytest.raises(ProtocolViolation):
        talk.ask(ApiKey.METADATA, 9)


def test_a_session_that_the_target_bounds_ends_also_for_writes_that_never_reach_it() -> None:
    talk = Talk(route("t", Serve.FORWARD), access=PASSING)
    talk.backend.leaders = {("t", 0): 1}
    talk.relay("PLAIN", (Plain("mover", "old").first(), b""), lifetime_ms=10_000)
    talk.edge.clock = 9.0
    talk.produce(("t", 0, batch(sequence=0)))
    assert talk.edge.sent[-1].where == "source 1"
    talk.relay("PLAIN", (Plain("mover", "new").first(), b""), lifetime_ms=10_000)
    assert talk.edge.identities[-1].own == Login("PLAIN", "mover", "new")
    talk.edge.clock = 18.0
    talk.produce(("t", 0, batch(sequence=1)))
    talk.edge.clock = 20.0
    with pytest.raises(ProtocolViolation, match="did not renew"):
        talk.produce(("t", 0, batch(sequence=2)))


def test_a_renewal_begins_when_what_came_before_it_is_answered() -> None:
    """Within a login a broker accepts no other request: a held request in between would end the connection."""
    talk = Talk(access=PASSING)
    talk.relay("PLAIN", (Plain("mover", "old").first(), b""))
    talk.edge.sent.clear()
    talk.turn(g=GroupRoute("l", gathering=True))
    talk.ask(JOIN, 5, group_id="g", protocol_type="consumer")
    talk.ask(HANDSHAKE, 1, mechanism="PLAIN")
    assert talk.keys_sent == [JOIN], "the trial"
    talk.target_answers(JOIN, 5, error_code=25)
    talk.turn()
    assert talk.keys_sent == [JOIN, JOIN]
    talk.target_answers(JOIN, 5, member_id="given")
    assert talk.keys_sent == [JOIN, JOIN, HANDSHAKE]
    talk.target_answers(HANDSHAKE, 1, mechanisms=("PLAIN",))
    talk.ask(AUTHENTICATE, 2, auth_bytes=Plain("mover", "new").first())
    talk.target_answers(AUTHENTICATE, 2)
    assert talk.edge.identities[-1].own == Login("PLAIN", "mover", "new")


@pytest.mark.parametrize("access", [PASSING, MAPPED])
@pytest.mark.parametrize(
    ("version", "mechanism", "code", "sentence"),
    [
        (1, "GSSAPI", 33, "Kerberos: its tickets are for a broker's host name"),
        (1, "AWS_MSK_IAM", 33, "not offered"),
        (0, "AWS_MSK_IAM", 33, "not offered"),
    ],
)
def test_what_no_router_can_follow_is_refused_with_what_it_offers(
    access: ListenerAccess, version: int, mechanism: str, code: int, sentence: str
) -> None:
    talk = Talk(access=access)
    talk.ask(HANDSHAKE, version, mechanism=mechanism)
    told = talk.answer(HANDSHAKE, version)
    assert (code_of(told.error_code), tuple(told.mechanisms)) == (code, access.mechanisms)
    assert sentence in talk.edge.closed[0]
    assert talk.edge.sent == []
    assert dict(talk.shared.failed_logins) == {"PLAIN" if mechanism == "PLAIN" else "other": 1}


def _without_header(talk: Talk, message: bytes) -> None:
    talk.session.frame(bytearray(len(message).to_bytes(4, "big") + message))


@pytest.mark.parametrize(("mechanism", "version"), [("PLAIN", 0), ("SCRAM-SHA-512", 0)])
def test_messages_without_headers_are_relayed_with_headers(mechanism: str, version: int) -> None:
    """The client gets what a broker would send after SaslHandshake version 0: length and message alone."""
    talk = Talk(access=PASSING)
    talk.ask(HANDSHAKE, version, mechanism=mechanism)
    assert peek_request(talk.edge.sent[-1].frame).version == 1
    talk.target_answers(HANDSHAKE, 1, mechanisms=PASSING.mechanisms)
    assert code_of(talk.answer(HANDSHAKE, version).error_code) == 0
    steps = [(Plain("orders", "pencil").first(), b"")]
    if mechanism != "PLAIN":
        client = Scram(mechanism, "orders", "pencil", "N")
        steps = [(client.first(), b"r=Nx,s=c2FsdA==,i=4096"), (b"c=biws,r=Nx,p=AAAA", b"v=AAAA")]
    for message, said in steps:
        assert not talk.session.logged_in
        _without_header(talk, message)
        head = peek_request(talk.edge.sent[-1].frame)
        assert (head.api_key, head.version, head.client_id) == (AUTHENTICATE, 1, "c")
        assert message in talk.edge.sent[-1].frame
        talk.target_answers(AUTHENTICATE, 1, auth_bytes=said)
        assert talk.edge.replies[-1] == len(said).to_bytes(4, "big") + said
    assert talk.session.logged_in and talk.edge.identities[-1].name == "orders"
    talk.ask(ApiKey.METADATA, 9)
    assert talk.keys_sent[-1] == ApiKey.METADATA


def test_a_refusal_of_a_message_without_header_ends_the_connection_without_a_word() -> None:
    talk = Talk(access=PASSING)
    talk.ask(HANDSHAKE, 0, mechanism="PLAIN")
    talk.target_answers(HANDSHAKE, 1, mechanisms=PASSING.mechanisms)
    replies = len(talk.edge.replies)
    _without_header(talk, Plain("orders", "wrong").first())
    talk.target_answers(AUTHENTICATE, 1, error_code=58, error_message="no")
    assert (len(talk.edge.replies), talk.session.logged_in) == (replies, False)
    assert talk.edge.closed == ["c: its login was refused"]


def test_a_session_that_the_target_bounds_ends_for_a_client_that_cannot_renew_its_session() -> None:
    """A broker ends such a client's session, too (KIP-368)."""
    talk = Talk(access=PASSING)
    talk.ask(HANDSHAKE, 0, mechanism="PLAIN")
    talk.target_answers(HANDSHAKE, 1, mechanisms=PASSING.mechanisms)
    _without_header(talk, Plain("orders", "pencil").first())
    talk.target_answers(AUTHENTICATE, 1, session_lifetime=dt.timedelta(seconds=10))
    talk.edge.clock = 11.0
    with pytest.raises(ProtocolViolation, match="did not renew"):
        talk.ask(ApiKey.METADATA, 9)


@pytest.mark.parametrize("access", [PASSING, MAPPED])
def test_a_session_is_not_renewed_by_messages_without_headers(access: ListenerAccess) -> None:
    if access is PASSING:
        talk = Talk(access=access)
        talk.relay("PLAIN", (Plain("orders", "pencil").first(), b""))
    else:
        talk = mapped("PLAIN", Plain("orders", "pencil").first())
        talk.edge.logins[0][1]("")
    talk.ask(HANDSHAKE, 0, mechanism="PLAIN")
    assert code_of(talk.answer(HANDSHAKE, 0).error_code) == 34
    assert "renewed by SaslHandshake version 1" in talk.edge.closed[0]


def test_a_mapped_client_may_log_in_by_messages_without_headers() -> None:
    talk = Talk(access=MAPPED)
    talk.ask(HANDSHAKE, 0, mechanism="SCRAM-SHA-256")
    client = Scram("SCRAM-SHA-256", "orders", "pencil", "N")
    _without_header(talk, client.first())
    proof = client.step(bytes(talk.edge.replies[-1][4:]))
    assert proof is not None
    _without_header(talk, proof)
    talk.edge.logins[0][1]("")
    assert client.step(bytes(talk.edge.replies[-1][4:])) is None
    assert talk.session.logged_in
    talk.ask(ApiKey.METADATA, 9)
    assert talk.keys_sent == [ApiKey.METADATA]

    talk = Talk(access=MAPPED)
    talk.ask(HANDSHAKE, 0, mechanism="PLAIN")
    _without_header(talk, Plain("orders", "wrong").first())
    talk.edge.clock += 0.1
    talk.session.advance()
    assert len(talk.edge.replies) == 1, "the handshake's answer alone"
    assert talk.edge.closed


def test_a_listener_without_logins_says_so_as_a_broker_does() -> None:
    talk = Talk()
    talk.ask(HANDSHAKE, 1, mechanism="PLAIN")
    assert code_of(talk.answer(HANDSHAKE, 1).error_code) == 34
    talk = Talk()
    talk.ask(AUTHENTICATE, 2, auth_bytes=b"")
    talk.hears_a_refusal()
    assert code_of(talk.answer(AUTHENTICATE, 2).error_code) == 34


def mapped(mechanism: str, *words: bytes) -> Talk:
    talk = Talk(access=MAPPED)
    talk.ask(HANDSHAKE, 1, mechanism=mechanism)
    assert code_of(talk.answer(HANDSHAKE, 1).error_code) == 0
    for word in words:
        talk.ask(AUTHENTICATE, 2, auth_bytes=word)
    return talk


def test_a_mapped_client_is_let_in_when_the_target_has_taken_what_stands_for_it() -> None:
    talk = mapped("PLAIN", Plain("orders", "pencil").first())
    ((identity, arrived),) = talk.edge.logins
    assert identity.entry is ORDERS
    assert not talk.session.logged_in
    arrived("")
    assert talk.session.logged_in
    assert code_of(talk.answer(AUTHENTICATE, 2).error_code) == 0

    talk = mapped("PLAIN", Plain("orders", "pencil").first())
    talk.edge.logins[0][1]("the target refused it")
    talk.hears_a_refusal()
    told = talk.answer(AUTHENTICATE, 2)
    assert (code_of(told.error_code), told.error_message) == (58, "the router cannot log in to the target for orders")
    assert talk.edge.closed
    assert "the target refused it" in talk.backend.said[0]


def test_a_mapped_client_proves_its_password_by_scram() -> None:
    client = Scram("SCRAM-SHA-256", "orders", "pencil", "N")
    talk = mapped("SCRAM-SHA-256", client.first())
    proof = client.step(bytes(talk.answer(AUTHENTICATE, 2).auth_bytes))
    talk.ask(AUTHENTICATE, 2, auth_bytes=proof)
    talk.edge.logins[0][1]("")
    assert client.step(bytes(talk.answer(AUTHENTICATE, 2).auth_bytes)) is None
    assert talk.session.logged_in


@pytest.mark.parametrize(
    ("mechanism", "word"),
    [
        ("PLAIN", b"\0orders\0wrong"),
        ("PLAIN", b"\0nobody\0pencil"),
        ("PLAIN", b"\0*\0"),
        ("PLAIN", b"rubbish"),
        ("SCRAM-SHA-256", b"n,,n=nobody,r=N"),
        ("SCRAM-SHA-256", b"\xff"),
    ],
)
def test_a_mapped_client_that_the_table_does_not_know_hears_kafkas_sentence(mechanism: str, word: bytes) -> None:
    talk = mapped(mechanism, word)
    talk.hears_a_refusal()
    told = talk.answer(AUTHENTICATE, 2)
    assert (code_of(told.error_code), told.error_message) == (58, "Authentication failed: Invalid username or password")
    assert talk.edge.closed
    assert talk.edge.logins == []
    assert dict(talk.shared.failed_logins) == {mechanism: 1}


def test_a_mapped_session_is_renewed_under_its_own_name_alone() -> None:
    access = ListenerAccess(
        MAPPED.tls, MAPPED.mechanisms, True, {"orders": ORDERS, "other": ClientEntry("other", "pen")}
    )
    for name, password, code in (("orders", "pencil", 0), ("other", "pen", 58)):
        talk = Talk(access=access)
        for renews, who in enumerate((Plain("orders", "pencil"), Plain(name, password))):
            talk.ask(HANDSHAKE, 1, mechanism="PLAIN")
            talk.ask(AUTHENTICATE, 2, auth_bytes=who.first())
            if not renews:
                talk.edge.logins[0][1]("")
        assert len(talk.edge.logins) == 1
        if code:
            talk.hears_a_refusal()
        assert code_of(talk.answer(AUTHENTICATE, 2).error_code) == code
        assert bool(talk.edge.closed) == bool(code)


def test_a_forwarded_write_that_the_source_refuses_to_hear_is_answered_as_not_authorized() -> None:
    talk = Talk(route("t", Serve.FORWARD))
    talk.backend.leaders = {("t", 0): 1}
    talk.produce(("t", 0, batch(sequence=0)))
    done = talk.edge.sent[-1].done
    assert done is not None
    done(Outcome(None, sent=False, refused="no credential of orders is known"))
    assert talk.told() == [(1, [("t", 0, 29)])]
    assert talk.backend.refreshed == []
    assert talk.shared.forwards.in_flight[route("t", Serve.FORWARD).key] == 0


@pytest.mark.parametrize("version", range(6))
def test_a_writer_of_the_source_gets_a_producer_id_that_the_target_refuses_it(version: int) -> None:
    """The router gives a writer of the source a producer id when the target refuses to.

    While its topics are mirrored, the writer may write no topic of the target, so the target hands out no producer id.
    """

    def talk(*served: Serve, code: int = 31, transactional: str | None = None) -> Talk:
        made = Talk(*(route("t", one) for one in served))
        made.ask(22, version, transactional_id=transactional, producer_id=-1, producer_epoch=-1)
        made.target_answers(22, version, error_code=code, producer_id=-1 if code else 9, producer_epoch=0)
        return made

    helped = talk(Serve.FORWARD)
    assert helped.edge.replies == []
    helped.backend.ids.pop()(77)
    told = helped.answer(22, version)
    assert (code_of(told.error_code), told.producer_id, told.producer_epoch) == (0, 77, 0)

    unlucky = talk(Serve.FORWARD)
    unlucky.backend.ids.pop()(-1)
    assert code_of(unlucky.answer(22, version).error_code) == 31

    for passed in (talk(), talk(Serve.LOCAL), talk(Serve.FORWARD, transactional="t"), talk(Serve.FORWARD, code=0)):
        assert passed.backend.ids == []
        assert len(passed.edge.replies) == 1
