"""Who may come through a router's listeners, and as whom each client meets the two clusters. Frozen values.

| the door asks | who judges | the client meets the target | and the source of a forwarded write |
|---|---|---|---|
| nothing | nobody | as nobody | as nobody |
| a login, passed through | the target | as itself | by the table, or by its own password or token |
| a login, mapped | the router, by its table | by the table | by the table |
| a certificate, mapped | the router, by its table | by the table | by the table |

a. The router never lends a client kmigrate's own rights: where a cluster asks who comes and nothing is known to
   answer, the client is refused.
b. What a client has passed through lives in memory, as long as its connection does, and in no `repr`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmigrate.errors import Refused
from kmigrate.model.security import Bearer, Login, Security
from kmigrate.model.settings import ClusterSettings

__all__ = [
    "ANYBODY",
    "MECHANISMS",
    "NOBODY",
    "OPEN_DOOR",
    "ClientEntry",
    "Door",
    "Identity",
    "ListenerTls",
    "check_door",
]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""What a router relays. Not Kerberos, and not MSK's own: both are signed for the broker's host name."""
ANYBODY = "*"
"""The table's entry for those who have none of their own."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """The certificate that the listeners show, and the authority of the certificates that they demand."""

    cert_file: str
    key_file: str
    key_password: str = field(default="", repr=False)
    client_ca: str = ""
    """PEM; '' where clients need no certificate."""


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """One client of the table: how the router knows it, and as whom it meets each cluster, by cluster name."""

    name: str
    password: str = field(default="", repr=False)
    certificate: str = ""
    upstream: Mapping[str, Security] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client has proved to be."""

    name: str = ""
    own: Login | Bearer | None = None
    """What it passed through, where that is of use again: a password or a token, never a SCRAM proof."""
    entry: ClientEntry | None = None
    fallback: ClientEntry | None = None

    def at(self, cluster: ClusterSettings) -> Security | None:
        """How its connections to a cluster prove who it is; None where nothing is known that would (a)."""
        security, entry = cluster.security, self.entry
        if entry is not None and cluster.name in entry.upstream:
            return entry.upstream[cluster.name]
        if not security.identifies:
            return security
        if self.own is not None and security.sasl is not None:
            return replace(security, sasl=self.own)
        return self.fallback.upstream.get(cluster.name) if self.fallback is not None else None


NOBODY = Identity()


@dataclass(frozen=True, slots=True)
class Door:
    """What a router's listeners ask of a client."""

    tls: ListenerTls | None = None
    mechanisms: tuple[str, ...] = ()
    """Empty: no login is asked for."""
    mapped: bool = False
    """Whether the router judges logins by its table, instead of the target."""
    clients: Mapping[str, ClientEntry] = field(default_factory=dict)
    files: tuple[str, ...] = field(default=(), compare=False)
    """What the clients were read from: the table, and what it says stands in a file of its own."""

    @property
    def asks(self) -> bool:
        return bool(self.mechanisms)

    @property
    def protocol(self) -> str:
        """Kafka's word for what the listeners speak."""
        if self.asks:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    @property
    def knows_certificates(self) -> bool:
        """Whether a client is who its certificate names; a login, where one is asked for, says more (as in Kafka)."""
        return not self.mechanisms and any(entry.certificate for entry in self.clients.values())

    @property
    def identifies(self) -> bool:
        return self.asks or self.knows_certificates

    def named(self, name: str | None, own: Login | Bearer | None = None) -> Identity:
        """The identity of a client whose login the target, or the table, has accepted under this name."""
        entry = self.clients.get(name) if name and name != ANYBODY else None
        return Identity(name or "", own, entry, self.clients.get(ANYBODY))

    def holder(self, certificate: str) -> Identity | None:
        """The identity behind a certificate's subject, None where the table does not have it."""
        for entry in self.clients.values():
            if entry.certificate and entry.certificate == certificate:
                return Identity(entry.name, None, entry, self.clients.get(ANYBODY))
        return None

    def still(self, identity: Identity) -> Identity | None:
        """The same client by this table; None where a table alone has let it in, and this one does not know it."""
        before = identity.entry
        found = self.named(identity.name, identity.own)
        if before is None or (self.asks and not self.mapped):
            return found
        return found if found.entry is not None and found.entry.certificate == before.certificate else None


OPEN_DOOR = Door()


def check_door(door: Door, target: ClusterSettings, others: Iterable[ClusterSettings]) -> None:
    """Refuse a router that could not be true to (a), before it takes a client."""
    asking = sorted(each.name for each in (target, *others) if each.security.identifies)
    if asking and not door.identifies:
        raise _refused(
            "router-not-secure",
            f"the router's listeners ask nobody who they are, and these clusters do: {', '.join(asking)}",
            "set security_protocol in [router] to SASL_SSL, or to SSL with client_ca and credentials",
        )
    if door.asks and not door.mapped:
        if target.security.sasl is None:
            raise _refused(
                "router-login-not-judged",
                f"the router passes logins through to {target.name}, which takes none "
                f"(security.protocol {target.security.protocol})",
                'set login = "mapped" and credentials in [router]',
            )
        return
    lacking = sorted(
        name for name in door.clients if name != ANYBODY and door.named(name).at(target) is None
    )
    if lacking:
        raise _refused(
            "no-credential",
            f"the router's table does not say as whom these meet {target.name}: {', '.join(lacking)}",
            f"give each [clients.NAME.clusters.{target.name}], or that of [clients.\"{ANYBODY}\"]",
        )


def _refused(ref: str, what: str, next_step: str) -> Refused:
    return Refused(
        ref,
        what,
        still_true="no listener was opened; mirrors and controllers can run",
        next_step=f"{next_step} (docs/security.md)",
    )
