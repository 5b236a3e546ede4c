"""Sockets of the router: a client's connection, and the upstream connections that belong to that client alone.

Each client connection has a single upstream per broker. So TCP keeps the order of each producer's requests, and clients
do not affect each other. A broker's quotas and limits see a connection per client (D13).

Back-pressure: reading from a client pauses while an upstream of the client accepts no more, or too much waits for
answers, or the client does not read. Reading from the target pauses while the client does not read. A source is always
read: its answers are short, no more than the client has asked for, and a promote waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from kmigrate.errors import KmigrateError, ProtocolViolation, Refused
from kmigrate.model.listener_access import NOBODY, Identity
from kmigrate.model.presences import ClientWithoutCredential
from kmigrate.model.security import PLAINTEXT, Security
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import call_when, monotonic
from kmigrate.net.stream import FrameStream
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.frames import TakePiece, take_all
from kmigrate.router.process.upstream import Addresses, Upstream
from kmigrate.router.session.session import Session
from kmigrate.router.shared.client_handoff import Who, grouped
from kmigrate.router.shared.conversation import Future
from kmigrate.router.shared.state import BeginsAnswer, Buffer, ClientLink, Outcome, SharedState

__all__ = ["ClientConnection", "SecuredClusters"]

_T = TypeVar("_T")
_ON_TRUST = 128 * 1024
"""Bytes of memory that a client gets for the mere announcement of a request."""
_LOGIN_PAUSE_S = 1.0
_PARTING_S = 5.0
"""Time in which a client must read to the end of a connection that the router has closed, and close it."""
_LAST_FORWARDS_S = 120.0
"""Time in which a cluster must answer the writes of a client that is gone, if a fence may wait for them.

A host that has vanished may be silent for as long (`net.dial`). Without the limit, every promote would wait forever for
a source that accepts everything and answers nothing.
"""
_LAST_WRITES_S = 30.0
"""Time in which the target must read the last writes of a client that is gone, if they ask for no answer."""


class SecuredClusters(Protocol):
    """The settings of the clusters, into which a client's own credential is put."""

    @property
    def target_settings(self) -> ClusterSettings: ...

    def source_settings(self, link: str) -> ClusterSettings | None: ...

    def source_uuid(self, link: str) -> str: ...


class ClientConnection(ClientLink):
    """Implements `ClientLink` for a session: the client's socket and its upstreams."""

    def __init__(
        self,
        shared: SharedState,
        tasks: TaskOwner,
        target: Addresses,
        source: Callable[[str, int], Addresses],
        clusters: SecuredClusters,
        on_made: Callable[[ClientConnection], None],
        on_end: Callable[[ClientConnection], None],
        *,
        broker: int | None,
        home: str = "",
    ) -> None:
        self._shared = shared
        self._tasks = tasks
        self._target_addresses = target
        self._source_addresses = source
        self._clusters = clusters
        self._on_made = on_made
        self._on_end = on_end
        self._identity: Identity | None = None
        """Identity of the client; None until the client has proved a required identity."""
        self._deadline: asyncio.TimerHandle | None = None
        self._distrusts: dict[str, str] = {}
        """Last reported TLS fault towards the source of each link."""
        self._refusals: dict[str, tuple[float, str]] = {}
        """Time and reason of the last refusal of this client by the source of each link."""
        self._target: Upstream | None = None
        self._writes_at_target = 0
        """Number of writes under way to the target that a rollback's fence waits for."""
        self._sources: dict[tuple[str, int], Upstream] = {}
        """Upstreams by the link's uuid and the source's node: a new link of the same name may have another source."""
        self._coordinators: dict[tuple[str, int], Upstream] = {}
        """Connections to group coordinators; once the client is gone, nobody waits for their answers."""
        self._rebalances: dict[tuple[str, int], Upstream] = {}
        """Connections for JoinGroup and SyncGroup, which wait for other members: a commit must not wait behind them."""
        self._ended = False
        self._retiring = False
        self.session = Session(shared, self)
        self.session.broker = broker
        self.session.home = home
        self.stream = FrameStream(
            self._on_frame, self._on_lost, max_frame=shared.settings.max_frame, on_trust=_ON_TRUST
        )
        self.stream.on_writable = self._client_writable
        self.stream.on_made = self._made
        self.stream.on_large = self._watch

    # the client's socket

    def _made(self) -> None:
        """Take in the new connection. Until the login, which has a deadline, requests must be short."""
        settings, access = self._shared.settings, self._shared.access
        self.session.host = self.stream.peer.rpartition(":")[0]
        self._on_made(self)
        self.session.since = self.session.active = monotonic()
        self._shared.handoff.connections.add(self.session)
        if access.asks:
            self.stream.max_frame = settings.max_login_frame
            self._deadline = asyncio.get_running_loop().call_later(settings.login_s, self._late)
        elif not access.knows_certificates:
            self._identity = NOBODY
        else:
            self._identity = access.holder(self.stream.subject)
            if self._identity is None:
                self._shared.failed_logins["certificate"] += 1
                self._shared.backend.warn(f"{self.stream.peer}: no client of the table has {self.stream.subject!r}")
                self.close("")

    def _late(self) -> None:
        if not self.session.logged_in:
            self.close(f"it was not logged in after {self._shared.settings.login_s:g} s")

    def _accepted(self, identity: Identity) -> None:
        self._identity = identity
        if refusal := self._shared.limits.logged_in(self):
            asyncio.get_running_loop().call_soon(self.close, refusal)
        self.stream.max_frame = self._shared.settings.max_frame
        if self._deadline is not None:
            self._deadline.cancel()

    def look_up(self) -> None:
        """Close the connection if a newer table no longer has a client that the table alone judges.

        Otherwise the newer table holds only for the next connection, and for the next login.
        """
        identity = self._identity
        if self._ended or identity is None or identity is NOBODY:
            return
        self._identity = self._shared.access.still(identity)
        if self._identity is None:
            self._identity = identity
            self.close(f"the table no longer has {identity.name}")

    def make_room(self) -> None:
        """End this connection before the login, because too many others wait for a login."""
        self.reset("it is not logged in, and too many connections are not")

    @property
    def principal(self) -> str:
        """Name that the client has proved, '' without a name or without a required proof."""
        return self._identity.name if self._identity is not None else ""

    @property
    def who(self) -> Who:
        """The client's names, for people who wait for the client to leave."""
        session = self.session
        return session.client_id, session.host, self.principal, session.software

    @property
    def named(self) -> str:
        (client,), _ = grouped([(self.who, self.session.on_broker)])
        return client.text

    def _on_frame(self, frame: bytearray) -> None:
        if self._ended:
            self.stream.close()  # the connection was refused before its socket was known
            return
        try:
            self.session.frame(frame)
        except KmigrateError as violation:
            self.close(violation.what)

    def _on_lost(self, error: Exception | None) -> None:
        if isinstance(error, ProtocolViolation) and not self._ended:
            self._shared.backend.say(f"closing the connection of {self.stream.peer}: {error.what}")
        self._end()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_end(self)
        self._shared.handoff.connections.discard(self.session)
        if self._target is not None:
            self._target.read(True)  # the target connection may end only after its answers
        self.session.closed()

    @property
    def draining(self) -> bool:
        """True if forwards of this client are not answered yet, or writes that a rollback's fence waits for."""
        return self._writes_at_target > 0 or any(
            not upstream.ended and upstream.busy for upstream in self._sources.values()
        )

    @property
    def _asks_sources(self) -> bool:
        """True if the client has a request that a source has yet to answer."""
        asked = (*self._sources.values(), *self._of_groups())
        return any(not upstream.ended and upstream.busy for upstream in asked)

    def _watch(self) -> None:
        self._shared.limits.watch(self)

    @property
    def held(self) -> int:
        upstreams = sum(upstream.held for upstream in self._upstreams())
        return self.stream.held + self.session.waiting_bytes + upstreams

    def idle_for(self, now: float) -> float:
        return now - self.session.active if self.session.idle else 0.0

    def _client_writable(self, writable: bool) -> None:
        if self._target is not None and not self._ended:
            self._target.read(writable)
        self._flow()

    def _upstreams(self) -> list[Upstream]:
        return [*([self._target] if self._target else []), *self._sources.values(), *self._of_groups()]

    def _of_groups(self) -> list[Upstream]:
        return [*self._coordinators.values(), *self._rebalances.values()]

    def _flow(self) -> None:
        if self._ended or self._retiring:
            return
        waiting = self.session.waiting_bytes
        if waiting:
            self._watch()
        takes = all(upstream.takes for upstream in self._upstreams())
        if self.stream.writable and takes and not self.session.congested(waiting):
            self.stream.resume_reading()
        else:
            self.stream.pause_reading()

    # ClientLink

    def now(self) -> float:
        return monotonic()

    def reply(self, parts: Sequence[Buffer]) -> None:
        if self._ended:
            return
        if len(parts) == 1:
            self.stream.write(parts[0])
        else:
            self.stream.write_many(list(parts))
        self._watch()
        if self.stream.stopped:
            self._flow()

    def to_target(
        self,
        parts: Sequence[Buffer],
        correlation: int,
        answered: Callable[[bytearray], None] | None,
        begins: BeginsAnswer | None = None,
    ) -> None:
        if self._target is not None and self._target.ended and not self._ended:
            self.close("")  # the target has ended its connection, and only answers of sources were still awaited
            return
        if self._target is None:
            if self._ended and answered is not None:
                return  # the request had to wait for earlier answers, and the client is gone
            self._target = self._open(self._target_addresses, self._target_security, self._target_ended)
        if answered is None:
            self._target.send(parts, correlation, None)
            return

        def done(outcome: Outcome) -> None:
            if outcome.frame is not None and not self._ended:
                self._guard(answered, outcome.frame)

        self._target.send(parts, correlation, done, partial(self._begins, begins) if begins is not None else None)

    def write_to_target(self, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]) -> None:
        if self._target is None:
            self._target = self._open(self._target_addresses, self._target_security, self._target_ended)
        elif self._target.ended and not self._ended:
            self.close("")  # as in `to_target`
        self._writes_at_target += 1

        def resolved(outcome: Outcome) -> None:
            self._writes_at_target -= 1
            self._guard(done, self._believed(outcome))

        self._target.send(parts, correlation, resolved)

    def _begins(self, begins: BeginsAnswer) -> TakePiece | None:
        """Handle the begin of a large answer; once the client is gone, the rest is dropped."""
        passes = begins() if not self._ended else take_all
        if passes is None:
            return None

        def guarded(piece: memoryview, left: int) -> int:
            try:
                return passes(piece, left) if not self._ended else len(piece)
            except KmigrateError as violation:
                self.close(violation.what)
                return len(piece)

        return guarded

    def _target_security(self) -> Security:
        """Return the security settings for this client's connection to the target (`model.listener_access`, a).

        If the login is relayed, or the client is not known yet, the router itself does not log in.
        """
        target, access = self._clusters.target_settings, self._shared.access
        if self._identity is None or (access.asks and not access.mapped):
            return replace(target.security, sasl=None)
        found = self._identity.at(target)
        if found is None:
            raise Refused("no-credential", f"the table has no credential of {self.principal} for {target.name}")
        return found

    def identified(self, identity: Identity) -> None:
        self._accepted(identity)
        for upstream in (*self._sources.values(), *self._of_groups()):
            upstream.identified()

    def log_in(self, identity: Identity) -> Future[str]:
        before, self._target = self._target, None
        if before is not None:
            before.replaced()
        self._identity = identity
        arrived = Future[str]()

        def ready(problem: str) -> None:
            if not problem:
                self._accepted(identity)
            arrived.set(problem)

        try:
            self._target_security()
        except Refused as refusal:
            return Future(refusal.what)
        self._target = self._open(self._target_addresses, self._target_security, self._target_ended)
        self._target.on_ready = ready
        return arrived

    def _target_ended(self, why: str) -> None:
        if self._target is not None and not self._target.owed and self._asks_sources:
            # Brokers end idle connections. A client without idempotence, cut off within a write, would write twice.
            # So the client still gets the answers of sources.
            self.session.cut_off()
            return
        if self._target is not None and self._target.distrust and not self._ended:
            self._shared.backend.warn(f"{self.principal or self.stream.peer} does not reach the target: {why}")
            why = ""
        self.close("" if not self.session.waits_for_answer else why)

    def to_source(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]
    ) -> None:
        self._to_source(self._sources, link, node, parts, correlation, done)

    def ask_coordinator(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, *, waits: bool = False
    ) -> Future[Outcome]:
        outcome = Future[Outcome]()
        pool = self._rebalances if waits else self._coordinators
        self._to_source(pool, link, node, parts, correlation, outcome.set)
        return outcome

    def _to_source(
        self,
        pool: dict[tuple[str, int], Upstream],
        link: str,
        node: int,
        parts: Sequence[Buffer],
        correlation: int,
        done: Callable[[Outcome], None],
    ) -> None:
        key = (self._clusters.source_uuid(link), node)
        upstream = pool.get(key)
        if upstream is None or upstream.ended:
            settings = self._clusters.source_settings(link)
            refusal = self._refusal(link, settings, writes=pool is self._sources)
            if refusal:
                told = Outcome(None, sent=False, refused=refusal)
                asyncio.get_running_loop().call_soon(self._guard, done, told)
                return
            upstream = self._open(
                self._source_addresses(link, node),
                lambda: self._source_security(settings) or PLAINTEXT,
                lambda why: self._source_ended(link, pool, key, why),
            )
            upstream.on_ready = partial(self._logged_in, link)
            pool[key] = upstream
        upstream.send(parts, correlation, lambda outcome: self._guard(done, self._believed(outcome)))

    def _believed(self, outcome: Outcome) -> Outcome:
        """Return the answer to a write, unless this process was paused while the write was in flight."""
        if not self._shared.stood_still():
            return outcome
        self.reset()
        return Outcome(None)

    def _source_security(self, settings: ClusterSettings | None) -> Security | None:
        return (self._identity or NOBODY).at(settings) if settings is not None else PLAINTEXT

    def _refusal(self, link: str, settings: ClusterSettings | None, *, writes: bool) -> str:
        """Return why a client's requests cannot go to a source; a refused login is not repeated within a second."""
        when, refusal = self._refusals.get(link, (float("-inf"), ""))
        if monotonic() - when < _LOGIN_PAUSE_S:
            return self._note_refused(link, refusal, writes=writes)
        if self._source_security(settings) is None:
            self._refusals[link] = (monotonic(), "")
            return self._note_refused(link, "", writes=writes)
        return ""

    def _note_refused(self, link: str, refusal: str, *, writes: bool) -> str:
        """Note that this client cannot log in to a source, and return the reason; '': no credential is known.

        The first refusal of each client is logged.
        """
        settings, session = self._clusters.source_settings(link), self.session
        name, sasl = (settings.name, settings.security.sasl) if settings is not None else ("", None)
        client = ClientWithoutCredential(
            self.principal, session.client_id, session.host, link, name, refusal, sasl is not None, writes
        )
        who = f"the router cannot log in to the source as {self.principal or 'this client'}"
        why = f"{who}: {refusal or 'the table of clients has no credential'}"
        if self._shared.missing_credentials.refused(client, monotonic()):
            self._shared.backend.warn(f"requests of {client.text} to the source of {link} are refused: {why}")
        return why

    def _logged_in(self, link: str, problem: str) -> None:
        """Note the end of a login to a source."""
        if not problem:
            self._shared.missing_credentials.accepted(link, self.principal)

    def _source_ended(self, link: str, pool: dict[tuple[str, int], Upstream], key: tuple[str, int], why: str) -> None:
        ended = pool.pop(key, None)
        if ended is not None and ended.refused:
            self._refusals[link] = (monotonic(), ended.refused)
            self._note_refused(link, ended.refused, writes=pool is self._sources)
        elif ended is not None and ended.distrust and ended.distrust != self._distrusts.get(link):
            self._distrusts[link] = ended.distrust
            self._shared.backend.warn(
                f"{self.principal or self.stream.peer} does not reach the source of {link}: {why}"
            )

    def _open(self, addresses: Addresses, security: Callable[[], Security], on_end: Callable[[str], None]) -> Upstream:
        upstream = Upstream(self._tasks, addresses, security, on_end)
        upstream.on_flow = lambda _: self._flow()
        upstream.on_large = self._watch
        return upstream

    def _guard(self, call: Callable[[_T], None], value: _T) -> None:
        try:
            call(value)
        except KmigrateError as violation:
            self.close(violation.what)

    def wake_at(self, when: float) -> None:
        call_when(when, self.session.advance)

    def advanced(self, *, done: bool) -> None:
        if not done:
            self._flow()
            return
        if self._target is not None and self._writes_at_target:
            self._target.close_when_answered(_LAST_FORWARDS_S)
        elif self._target is not None and self._target.silent:
            self._target.close_when_answered(_LAST_WRITES_S)
        elif self._target is not None:
            self._target.close_now()
        for upstream in list(self._sources.values()):
            upstream.close_when_answered(_LAST_FORWARDS_S)
        for upstream in self._of_groups():
            upstream.close_now()

    def close(self, reason: str) -> None:
        """Close the connection once the client has its answers, for which the client has limited time."""
        if self._ended:
            return
        if not self.stream.writable or self.session.halfway:
            self.reset(reason)
            return
        self._say_why(reason)
        self.stream.close()
        if self.stream.held:
            asyncio.get_running_loop().call_later(_PARTING_S, self.stream.abort)
        self._end()

    def _say_why(self, reason: str) -> None:
        if reason:
            self._shared.backend.say(f"closing the connection of {self.stream.peer}: {reason}")

    def retire(self) -> None:
        """Read no more, and close once all requests are answered: no client family reports such an end."""
        self._retiring = True
        self.stream.pause_reading()
        self.session.leave()

    def part(self) -> None:
        self.stream.finish()
        # a close with unread bytes would reset the connection, and the client would lose answers
        self.stream.resume_reading()
        asyncio.get_running_loop().call_later(_PARTING_S, self.close, "")

    def reset(self, reason: str = "") -> None:
        """Reset the client's connection alone; its requests to the source are accounted for to the end."""
        if not self._ended:
            self._say_why(reason)
        self.stream.abort()
        self._end()

    def abort(self) -> None:
        """Reset the client's connection and every upstream."""
        self.stream.abort()
        for upstream in self._upstreams():
            upstream.abort()
        self._end()
