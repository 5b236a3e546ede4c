"""Defines which clients a router's listeners admit, and as whom each client meets the two clusters. Frozen values.

| listeners require | judge | identity at the target | identity at the source, for a forwarded write |
|---|---|---|---|
| nothing | none | anonymous | anonymous |
| a login, passed through | the target | the client's own | by the table, or by the client's own password or token |
| a login, mapped | the router, by its table | by the table | by the table |
| a certificate, mapped | the router, by its table | by the table | by the table |

a. The router never lends kmigrate's own rights to a client. If a cluster requires an identity and no credentials are
   known for the client, the client is refused.
b. Credentials that a client has passed through live in memory, as long as the client's connection, and in no `repr`.
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
    "OPEN_ACCESS",
    "ClientEntry",
    "Identity",
    "ListenerAccess",
    "ListenerTls",
    "check_access",
]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""SASL mechanisms that a router relays; not Kerberos and MSK's own, which are signed for the broker's host name."""
ANYBODY = "*"
"""Name of the table's entry for clients without an entry of their own."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """The certificate that the listeners show, and the authority for the client certificates that they require."""

    cert_file: str
    key_file: str
    key_password: str = field(default="", repr=False)
    client_ca: str = ""
    """PEM file; '' if clients need no certificate."""


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """A client in the router's table: marks to recognise it, and (`upstream`) its security settings by cluster name."""

    name: str
    password: str = field(default="", repr=False)
    certificate: str = ""
    upstream: Mapping[str, Security] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that a client has proved."""

    name: str = ""
    own: Login | Bearer | None = None
    """The password or token that the client passed through, if it can be used again; never a SCRAM proof."""
    entry: ClientEntry | None = None
    fallback: ClientEntry | None = None

    def at(self, cluster: ClusterSettings) -> Security | None:
        """Return the security settings for the client at a cluster; None if no credentials are known (a)."""
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
class ListenerAccess:
    """The login and the encryption that a router's listeners require of clients."""

    tls: ListenerTls | None = None
    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms that clients may use; empty if no login is required."""
    mapped: bool = False
    """True if the router judges logins by its own table, False if the target judges logins."""
    clients: Mapping[str, ClientEntry] = field(default_factory=dict)
    files: tuple[str, ...] = field(default=(), compare=False)
    """Files from which the clients were read: the table, and the secret files that the table names."""

    @property
    def asks(self) -> bool:
        """True if the listeners require a login."""
        return bool(self.mechanisms)

    @property
    def protocol(self) -> str:
        """Kafka's security protocol of the listeners."""
        if self.asks:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    @property
    def knows_certificates(self) -> bool:
        """True if a certificate identifies the client; if a login is required, the login does, as in Kafka."""
        return not self.mechanisms and any(entry.certificate for entry in self.clients.values())

    @property
    def identifies(self) -> bool:
        return self.asks or self.knows_certificates

    def named(self, name: str | None, own: Login | Bearer | None = None) -> Identity:
        """Return the identity of a client whose login under this name the target or the table has accepted."""
        entry = self.clients.get(name) if name and name != ANYBODY else None
        return Identity(name or "", own, entry, self.clients.get(ANYBODY))

    def holder(self, certificate: str) -> Identity | None:
        """Return the identity for the subject of a certificate; None if the table does not contain the subject."""
        for entry in self.clients.values():
            if entry.certificate and entry.certificate == certificate:
                return Identity(entry.name, None, entry, self.clients.get(ANYBODY))
        return None

    def still(self, identity: Identity) -> Identity | None:
        """Return the client's identity under this (newer) table; None if this table does not admit the client any more.

        A client that only a table admitted needs an entry with the same certificate in this table.
        """
        before = identity.entry
        found = self.named(identity.name, identity.own)
        if before is None or (self.asks and not self.mapped):
            return found
        return found if found.entry is not None and found.entry.certificate == before.certificate else None


OPEN_ACCESS = ListenerAccess()


def check_access(access: ListenerAccess, target: ClusterSettings, others: Iterable[ClusterSettings]) -> None:
    """Refuse settings with which a router would break rule (a), before the router takes a client."""
    asking = sorted(each.name for each in (target, *others) if each.security.identifies)
    if asking and not access.identifies:
        raise _refused(
            "router-not-secure",
            f"the router's listeners ask nobody who they are, and these clusters do: {', '.join(asking)}",
            "set security_protocol in [router] to SASL_SSL, or to SSL with client_ca and credentials",
        )
    if access.asks and not access.mapped:
        if target.security.sasl is None:
            raise _refused(
                "router-login-not-judged",
                f"the router passes logins through to {target.name}, which takes none "
                f"(security.protocol {target.security.protocol})",
                'set login = "mapped" and credentials in [router]',
            )
        return
    lacking = sorted(name for name in access.clients if name != ANYBODY and access.named(name).at(target) is None)
    if lacking:
        raise _refused(
            "no-credential",
            f"the router's table does not say as whom these meet {target.name}: {', '.join(lacking)}",
            f'give each [clients.NAME.clusters.{target.name}], or that of [clients."{ANYBODY}"]',
        )


def _refused(ref: str, what: str, next_step: str) -> Refused:
    return Refused(
        ref,
        what,
        still_true="no listener was opened; mirrors and controllers can run",
        next_step=f"{next_step} (docs/security.md)",
    )
