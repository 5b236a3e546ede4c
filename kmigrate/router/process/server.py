"""The router as a process: listeners, routing table, and reports to the controller.

The router registers in the state log before it accepts the first client, so no fence can be complete without it. Each
newer state of the log becomes a new routing table, swapped in one step. Then held requests go on in the order in which
they were held. The controller waits for the router's acknowledgement of a fence (`FenceAck`): sent as soon as a topic
is fenced, and again when the last forward in flight is resolved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed, KmigrateError, Refused, WaitTimedOut
from kmigrate.model.listener_access import ListenerAccess
from kmigrate.model.presences import ConnectedClient, FenceAck, RouterPresence
from kmigrate.model.records import LinkRecord
from kmigrate.model.routes import next_table, routing_table
from kmigrate.net.buffers import give_back
from kmigrate.net.clock import boottime, monotonic, sleep
from kmigrate.net.retry import every, until
from kmigrate.net.tasks import TaskOwner
from kmigrate.net.tls import Arrivals, ServerTls
from kmigrate.observe.readiness import READY, Hindrance, Readiness
from kmigrate.observe.registry import Registry
from kmigrate.router.metrics import show_router
from kmigrate.router.process.clusters import Clusters
from kmigrate.router.process.credentials import Credentials
from kmigrate.router.process.listeners import ClientConnection
from kmigrate.router.process.ports import Key, Ports
from kmigrate.router.process.reachability import Reach
from kmigrate.router.process.registration import Registration
from kmigrate.router.process.transaction_store import StateLogTransactionStore
from kmigrate.router.settings import RouterSettings
from kmigrate.router.shared.client_handoff import grouped
from kmigrate.router.shared.fallback_routers import FallbackRouters
from kmigrate.router.shared.limits import Ended
from kmigrate.router.shared.state import SharedState
from kmigrate.router.transactions.locate import close_stale_transactions
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.state.log import StateLog
from kmigrate.state.topics import MAP_TOPIC, PRESENCE_TOPIC, STATE_TOPIC

__all__ = ["Router"]

_log = logging.getLogger("kmigrate.router")
_LOOK_AT_BROKERS_S = 10.0
_LOOK_AT_WRITES_S = 5.0
_LOOK_AT_TRANSACTIONS_S = 0.25
_LOOK_AT_CLIENTS_S = 5.0
_LOOK_AT_ROUTERS_S = 0.05
"""Shortest time between two looks at the other routers: all processes together write many presences a second."""
_BEAT_S = 0.25
_DRAIN_LOOK_S = 0.01
_LOOK_AT_MEMORY_S = 0.2
_SHARE = 0.1
"""Greatest part of the time that making announcements may take: each state record causes one."""
_LONGEST_GAP_S = 0.02
"""Longest time for which an announcement is put off: a fence waits for announcements."""
_ROUTINE_GAP_S = 0.02
"""Shortest time between two announcements that tell only of newer states, and of no fence."""
_BEHIND_FENCE_S = 0.1
"""Time for which an announcement is put off while writers wait for a flip, and the fence was acknowledged already."""


class Router:
    """A router; `start`, then `run` until it fails or is cancelled, then `close`."""

    def __init__(
        self,
        settings: RouterSettings,
        target: ClusterClient,
        source_client: Callable[[LinkRecord], ClusterClient],
        log: StateLog,
        instance: str,
    ) -> None:
        self.settings = settings
        self.instance = instance
        self._target = target
        self._state_log = log
        self._registration = Registration(log, settings.name, settings.told_host, instance)
        self._failed: asyncio.Future[None] | None = None
        self._tasks = TaskOwner(self._on_failure)
        self._clusters = Clusters(target, source_client, self._tasks, self._brokers_changed, self._drained)
        book = AddressBook(settings.node_id_offset)
        self._shared = SharedState(
            settings,
            routing_table(log.state),
            book,
            self._clusters,
            StateLogTransactionStore(log, self._tasks, self._swap_if_newer),
            FallbackRouters(book, Reach(self._tasks)),
        )
        self._connections: set[ClientConnection] = set()
        self._draining: set[ClientConnection] = set()
        self._clients: tuple[tuple[ConnectedClient, ...], int] = ((), 0)
        self._tls = ServerTls(settings.access.tls) if settings.access.tls else None
        if (tls := self._tls) is not None:
            self._shared.certificate_expires_at = lambda: tls.expires_at
        self._arrivals = (
            Arrivals(self._tls, settings.login_s, self._arrives, self._shared.limits.settled, self._shared.limits.left)
            if self._tls
            else None
        )
        self._ports = Ports(settings, self._accept, self._arrivals)
        self._credentials = Credentials(settings, self._tls, self._take_table)
        self._serving = False
        self._announces = False
        """True if an announcement is about to be made."""
        self._put_off: asyncio.TimerHandle | None = None
        """The timer of an announcement that is put off while writers wait for a flip."""
        self._acknowledged: Mapping[str, FenceAck] = {}
        """The newest announced reports on fenced topics."""
        self._announced_at = self._announced_s = 0.0
        """Time at which the newest announcement was made, and the time that making it took."""
        self._unheard = ""
        """Reason why this router's presence does not reach the log, or ''."""
        self._bootstrap = ("", 0)
        self._beat = boottime()
        """Time when this process was last seen to work, by its own clock."""
        self._shared.stood_still = lambda: boottime() - self._beat > settings.stood_still_s
        self._known = log.state
        """State from which the routing table was made."""
        self._unroutable = -1
        """Epoch of the newest state that made no routing table."""
        self._owes = False
        """True if forwards were in flight when another instance took this router's place: the stray record stays."""

    @property
    def bootstrap(self) -> str:
        """host:port that clients are given."""
        return f"{self._bootstrap[0]}:{self._bootstrap[1]}"

    # life

    async def start(self) -> None:
        """Bind the listeners, register and follow the log; return when clients are accepted.

        The first answer names the fallback routers already: clients come back at once to a router that starts again.
        """
        self._failed = asyncio.get_running_loop().create_future()
        await self._target.refresh([])
        await self._clusters.learn_target()
        await self._learn_own_topics()
        self._bootstrap = await self._ports.listen(None)
        self._shared.handoff.bootstrap = self.bootstrap
        self._ports.assign(self._target.metadata.brokers)
        for node in sorted(self._target.metadata.brokers):
            await self._listen(node)
        await self._state_log.read_to_end()
        await self._registration.take(self.bootstrap, self.settings.replaces)
        self._swap()
        self._shared.fallbacks.follow(self.bootstrap, self._state_log.alive(RouterPresence))
        self._serving = True
        await self._ports.serve()
        self._tasks.start(self._watch_itself(), "router-beat")
        self._tasks.start(self._follow(), "router-follow")
        self._tasks.start(self._presence(), "router-presence")
        self._tasks.start(self._watch_brokers(), "router-brokers")
        self._tasks.start(self._watch_writes(), "router-writes")
        self._tasks.start(self._credentials.watch(), "router-credentials")
        self._tasks.start(self._watch_routers(), "fallback-routers")
        self._tasks.start(self._watch_transactions(), "router-transactions")
        self._tasks.start(self._see_off(), "router-handoff")
        self._tasks.start(self._keep_limits(), "router-limits")

    @property
    def readiness(self) -> Readiness:
        """The readiness of this router for new clients."""
        if self._shared.closing:
            return Readiness(Hindrance.CLOSING, "clients are asked to leave")
        if not self._serving:
            return Readiness(Hindrance.STARTING, "no client is accepted yet")
        if self._shared.log_problem:
            return Readiness(Hindrance.STATE_LOG_LOST, self._shared.log_problem)
        if self._shared.stood_still():
            return Readiness(Hindrance.STOOD_STILL, "what was decided meanwhile is not read yet")
        if self._unroutable == self._state_log.state.epoch:
            return Readiness(Hindrance.STATE_UNUSABLE, f"state {self._unroutable} makes no routing table")
        return READY

    async def run(self) -> None:
        """Wait for a fatal error and raise it."""
        if self._failed is None:
            raise RuntimeError("start() comes first")
        await asyncio.shield(self._failed)

    async def close(self) -> None:
        """Accept no more clients, close each connection when its answers have arrived, and leave the state log."""
        self._serving = False
        self._shared.closing = True
        self._ports.close()
        deadline = monotonic() + self.settings.drain_s
        for connection in list(self._connections):
            connection.retire()
        await until(lambda: not self._connections, every_s=_DRAIN_LOOK_S, within_s=self.settings.drain_s)
        for connection in list(self._connections):
            connection.close("")
        resolved = await until(
            lambda: not any(c.draining for c in self._draining),
            every_s=_DRAIN_LOOK_S,
            within_s=deadline - monotonic(),
        )
        for connection in [*self._connections, *self._draining]:
            connection.abort()
        if self._arrivals is not None:
            await self._arrivals.close()
        await self._tasks.close()
        await self._clusters.close()
        if resolved and not self._owes:
            await self._registration.leave()

    def _on_failure(self, error: BaseException) -> None:
        _log.error("router: %r", error)
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    # listeners

    async def _listen(self, node: int) -> None:
        """Bind the listener of a target broker."""
        self._shared.book.addresses[node] = await self._ports.listen(node)

    async def _serve_home(self, home: str) -> None:
        """Bind the listener for clients of another router; without it they have only their own router's addresses."""
        try:
            host, port = await self._ports.listen(home)
        except Refused as refusal:
            _log.warning("clients of the router at %s are not received here: %s", home, refusal.what)
            return
        self._shared.fallbacks.addresses[home] = f"{host}:{port}"

    def _accept(self, key: Key) -> asyncio.BaseProtocol:
        node = key if isinstance(key, int) else None
        connection = ClientConnection(
            self._shared,
            self._tasks,
            lambda: self._clusters.target_addresses(node),
            lambda link, source_node: lambda: self._clusters.source_addresses(link, source_node),
            self._clusters,
            self._client_made,
            self._client_gone,
            broker=node,
            home=key if isinstance(key, str) else "",
        )
        return connection.stream

    def _client_made(self, connection: ClientConnection) -> None:
        """Take in a new connection; with TLS it is admitted already, and still counts as in the handshake."""
        limits, host, asks = self._shared.limits, connection.session.host, self._shared.access.asks
        refusal = ""
        if self._arrivals is None:
            refusal = limits.admit(host, logged_in=not asks)
        elif not asks:
            refusal = limits.has_room(host)
        if asks and not refusal:
            limits.not_logged_in(connection, host, connection.make_room)
        if self._shared.stood_still():
            refusal = refusal or "this router has not read yet what was decided while it stood still"
        if refusal:
            asyncio.get_running_loop().call_soon(connection.close, refusal)
        self._connections.add(connection)

    def _arrives(self, host: str, end: Callable[[], None]) -> bool:
        """Admit a connection to a listener with TLS, which counts from here; return whether the handshake may begin."""
        refusal = self._shared.limits.admit(host, logged_in=False)
        if refusal:
            self._shared.limits.left(host)
            self._shared.backend.say(f"closing a connection of {host}: {refusal}")
        else:
            self._shared.limits.not_logged_in(end, host, end)
        return not refusal

    def _client_gone(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._shared.limits.gone(connection, connection.session.host)
        self._draining = {c for c in self._draining if c.draining}
        if connection.draining:
            self._draining.add(connection)

    def _brokers_changed(self) -> None:
        missing = [node for node in self._target.metadata.brokers if node not in self._ports]
        if missing and self._serving:
            self._tasks.start(self._listen_more(missing))

    async def _listen_more(self, nodes: list[int]) -> None:
        try:
            self._ports.assign(nodes)
        except Refused as refusal:  # the clients of the other brokers stay, and this broker gets any free port
            _log.error("router: %s", refusal.what)
        for node in nodes:
            if node not in self._ports:
                await self._listen(node)

    async def _see_off(self) -> None:
        """Close connections in turn once the links are finished, so that brokers get no rush of new connections."""
        async for _ in every(1 / self.settings.leave_per_s):
            connection = self._shared.handoff.next(monotonic()) if self._shared.table.finished else None
            if connection is not None:
                connection.leave()

    async def _watch_itself(self) -> None:
        """Start anew after a pause of the process (SIGSTOP, a machine asleep): others may have declared it dead.

        The clients' connections are reset, so that no client gets a source answer of that time; requests already sent
        to a source are still awaited. No client is accepted before the router has read the decisions of that time: a
        topic may have been promoted meanwhile. The source broker holds the fence anyway (`workflow.promote.sealing`).
        """
        self._beat = boottime()
        async for _ in every(_BEAT_S):
            if self._shared.stood_still():
                _log.warning("router %s stood still for %.1f s", self.settings.name, boottime() - self._beat)
                for connection in list(self._connections):
                    connection.reset()
                await self._catch_up()
            self._beat = boottime()

    async def _catch_up(self) -> None:
        """Read the state log to its end, however long that takes."""
        while True:
            try:
                await self._state_log.read_to_end()
            # the presence of this router does not reach the log either, and `_hear` logs that
            except (Failed, WaitTimedOut):
                # the log cannot be read, however long this waits, and no fence counts on this router
                if self._shared.log_problem:
                    return
                await sleep(_BEAT_S)
            else:
                self._swap_if_newer()
                return

    async def _keep_limits(self) -> None:
        looked, relieved = monotonic(), 0
        async for _ in every(_LOOK_AT_MEMORY_S):
            if relieved < (parted := self._shared.limits.ended[Ended.MEMORY]):
                relieved = parted
                give_back()
            self._shared.limits.relieve()
            if (now := monotonic()) - looked >= min(_LOOK_AT_CLIENTS_S, self.settings.max_idle_s / 4):
                looked = now
                self._shared.limits.part_from_idle(self._connections, now)

    async def _watch_brokers(self) -> None:
        async for _ in every(_LOOK_AT_BROKERS_S):
            self._clusters.refresh_target()
            self._clusters.refresh_sources()
            await self._learn_own_topics()

    async def _learn_own_topics(self) -> None:
        """Learn the ids of kmigrate's own topics, because clients may name a topic by id, too."""
        try:
            told = await self._target.refresh([STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC])
        except Failed:  # asked again soon; meanwhile the known ids hold
            return
        found = (told.topics.get(name) for name in (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC))
        ids = {topic.topic_id.bytes for topic in found if topic is not None and topic.topic_id}
        self._shared.own_ids |= ids

    def _take_table(self, access: ListenerAccess) -> None:
        """Take a newer table of clients, for every connection from this moment."""
        self._shared.access = access
        self._shared.missing_credentials.clear()
        for connection in list(self._connections):
            connection.look_up()

    async def _watch_writes(self) -> None:
        async for _ in every(_LOOK_AT_WRITES_S):
            for connection in self._connections:
                connection.session.look_after()

    async def _watch_routers(self) -> None:
        """Keep listeners for the clients of every other router, and read the other routers' reports.

        The reports say where each router receives this router's clients, and which clients each router still keeps.
        """
        fallbacks = self._shared.fallbacks
        while True:
            registered = {each.bootstrap for each in self._state_log.state.routers()} - {self.bootstrap}
            for home in sorted(registered - fallbacks.addresses.keys()):
                for gone in self._ports.bound(registered):
                    del fallbacks.addresses[gone]
                await self._serve_home(home)
            heard = self._state_log.alive(RouterPresence)
            if any(each.instance == self.instance for each in heard):  # a router that does not hear itself hears nobody
                fallbacks.follow(self.bootstrap, heard)
                self._shared.handoff.heard = tuple(each for each in heard if each.instance != self.instance)
            await sleep(_LOOK_AT_ROUTERS_S)
            await self._state_log.changed_or_broken(1.0)

    async def _watch_transactions(self) -> None:
        async for _ in every(_LOOK_AT_TRANSACTIONS_S):
            await close_stale_transactions(self._shared, self._clusters.open_at_source)

    # the state log

    async def _follow(self) -> None:
        while True:
            self._swap_if_newer()
            self._note_log_problem(await self._state_log.changed_or_broken(1.0, state_only=True))

    def _note_log_problem(self, broken: KmigrateError | None) -> None:
        """Log once that the state log cannot be read, and once that the log is read again.

        Clients are served with the last routing table. Meanwhile this router acknowledges no fence.
        """
        before, self._shared.log_problem = self._shared.log_problem, broken.what if broken is not None else ""
        if self._shared.log_problem and self._shared.log_problem != before:
            _log.error(
                "state log: %s; this router goes on with the routing table of state %d and acknowledges no fence",
                self._shared.log_problem,
                self._shared.table.epoch,
            )
        elif before and not self._shared.log_problem:
            _log.warning("the state log is read again")

    def _swap_if_newer(self) -> None:
        if self._state_log.state.epoch != self._shared.table.epoch:
            if not self._registration.stands(self._state_log.state):
                self._replaced()
            self._swap()

    def _swap(self) -> None:
        state = self._state_log.state
        try:
            table = next_table(state, self._known, self._shared.table)
        except Exception as error:  # an unforeseen record: clients are served as before
            if self._unroutable != state.epoch:
                self._unroutable = state.epoch
                _log.exception("state %d makes no routing table: %r; the last one goes on", state.epoch, error)
            return
        self._known = state
        self._shared.swap(table, monotonic())
        self._clusters.follow(state, self._shared.table)
        self._announce_soon()
        self._shared.wake()

    def _replaced(self) -> None:
        """Stop all forwards, because no fence waits for this router any more."""
        self._owes = any(self._shared.forwards.in_flight.values()) or bool(self._shared.forwards.entering)
        self._ports.close()
        for connection in [*self._connections, *self._draining]:
            connection.abort()
        raise Refused(
            "router-replaced",
            f"another router has registered under the name {self.settings.name}",
            still_true="this one forwards nothing any more; its clients go to the other one",
            next_step="give each router a name of its own: --name, or [router] name",
        )

    # presence

    def show_in(self, registry: Registry) -> None:
        show_router(registry, self._shared, lambda: len(self._connections), lambda: self._target.metadata.cluster_id)

    def _announce_soon(self) -> None:
        """Announce what a new routing table changes, and leave the processors to a promote that this would not help.

        Every process of the link reads an announcement. A promote writes two records between the acknowledgement of
        its fence and its flip, and the announcements of all routers after each would delay the flip by milliseconds.
        """
        fences = self._shared.forwards.fences(self._shared.table)
        if fences != self._acknowledged:
            self._announce_now()
        elif self._put_off is None:
            gap = _BEHIND_FENCE_S if fences else self._announced_at + _ROUTINE_GAP_S - monotonic()
            self._put_off = asyncio.get_running_loop().call_later(max(0.0, gap), self._announce_now)

    def _drained(self) -> None:
        """Announce that something ended behind a fence; at once if no fenced topic waits for this router any more."""
        fences = self._shared.forwards.fences(self._shared.table)
        news = fences and fences != self._acknowledged
        if self._serving and news and not any(ack.in_flight for ack in fences.values()):
            self._tasks.start(self._tell())
        else:
            self._announce_now()

    def _announce_now(self) -> None:
        """Announce now, or in a moment if announcements would take more than a part of the time (`_SHARE`).

        No announcement waits for those in flight: all use the same connection, in order.
        """
        if self._serving and not self._announces:
            self._announces = True
            self._tasks.start(self._announce())

    async def _announce(self) -> None:
        gap = min(self._announced_s / _SHARE, _LONGEST_GAP_S)
        if (pause := self._announced_at + gap - monotonic()) > 0:
            await sleep(pause)
        self._announces = False
        await self._tell()

    async def _tell(self) -> None:
        """Announce the present state of this router."""
        if self._put_off is not None:
            self._put_off.cancel()
            self._put_off = None
        began = monotonic()
        presence = self.presence()
        self._acknowledged = presence.fences
        self._announced_at, self._announced_s = began, monotonic() - began
        try:
            await self._state_log.announce(presence)
        except Failed as error:  # announced again within the interval; meanwhile clients do not need the announcement
            self._hear(error.what)
            return
        self._hear("")

    def _hear(self, trouble: str) -> None:
        """Log a fault of the announcements once, however often they are tried again."""
        before, self._unheard = self._unheard, trouble
        if trouble and trouble != before:
            _log.warning("presence: %s", trouble)
        elif before and not trouble:
            _log.warning("presence: this router is heard again")

    def presence(self) -> RouterPresence:
        """Return this router's present report."""
        shared, access = self._shared, self._shared.access
        clients, more = self._clients
        return RouterPresence(
            instance=self.instance,
            name=self.settings.name,
            applied=shared.table.epoch,
            interval_ms=self.settings.presence_interval_ms,
            fences=shared.forwards.fences(shared.table),
            holds_ms=shared.forwards.holds_ms(),
            groups=shared.group_reports(monotonic()),
            connections=len(self._connections),
            forwarded=shared.forwards.total,
            on_brokers=sum(connection.session.on_broker for connection in self._connections),
            clients=clients,
            more_clients=more,
            protocol=access.protocol,
            maps_clients=access.mapped or access.knows_certificates,
            bootstrap=self.bootstrap,
            listeners={node: f"{host}:{port}" for node, (host, port) in shared.book.addresses.items()},
            fallbacks=shared.fallbacks.addresses,
            limits=shared.limits.told(),
            waiting=shared.waiting_groups.waiting(shared.table.held_groups | shared.table.followed.keys(), monotonic()),
            joins=shared.session_timeouts.words(shared.table.held_groups, shared.table.followed.keys(), monotonic()),
            kept_out=shared.kept_out.reported(monotonic()),
            served=shared.served.lately(monotonic()),
            refused=shared.trials.words(shared.table.held_groups | shared.table.followed.keys(), monotonic()),
            without_credential=shared.missing_credentials.words(
                shared.table.mirroring, shared.table.followed, monotonic()
            ),
            staying=tuple(shared.handoff.staying) if shared.table.finished else (),
            log_problem=shared.log_problem,
        )

    async def _presence(self) -> None:
        looked = float("-inf")
        async for _ in every(self.settings.presence_interval_ms / 1000, at_once=True):
            self._shared.forwards.tick(monotonic())
            # This takes milliseconds with thousands of connections, so only when somebody waits for the list.
            if self._shared.table.finished or monotonic() - looked >= _LOOK_AT_CLIENTS_S:
                looked = monotonic()
                self._clients = grouped((each.who, each.session.on_broker) for each in self._connections)
            self._announce_now()
