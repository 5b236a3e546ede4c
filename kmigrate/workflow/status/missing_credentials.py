"""Names the clients as whom the routers cannot log in to a source, with the lines for the table of clients."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kmigrate.model.presences import ClientWithoutCredential, RouterPresence
from kmigrate.workflow.base.plan import Finding, ok, warn

__all__ = ["MissingCredential", "credential_findings", "missing_credentials"]

_REF = "client-without-credential"
_MOST_NAMED = 3
_SASL = ("sasl.mechanism", "sasl.username", "sasl.password")
_CERTIFICATE = ("ssl.certificate.location", "ssl.key.location")


@dataclass(frozen=True, slots=True)
class MissingCredential:
    """A principal without a usable credential at the source of a link, and the clients that need the credential."""

    link: str
    cluster: str
    """The source's name in the routers' configuration."""
    principal: str
    clients: tuple[str, ...]
    """Client ids with their hosts."""
    writes: bool
    """True if writes are refused."""
    groups: tuple[str, ...]
    """Groups whose requests are refused."""
    refusal: str
    """The source's refusal of the table's credential; '' if the table has no credential."""
    lines: tuple[str, ...]
    """Lines for the routers' table of clients; the values have to be filled in."""

    @property
    def text(self) -> str:
        """Return the whole finding as one sentence."""
        more = f" and {len(self.clients) - _MOST_NAMED} more" if len(self.clients) > _MOST_NAMED else ""
        who = f"{', '.join(self.clients[:_MOST_NAMED])}{more} (principal {self.principal or 'unknown'})"
        refused = ["writes"] if self.writes else []
        refused += [f"requests of group {group}" for group in self.groups]
        why = f"{self.cluster} refuses the credential of the routers' table: {self.refusal}"
        if not self.refusal:
            why = f"the routers' table has no credential for {self.cluster}"
        return f"link {self.link}: {' and '.join(refused)} of {who} are refused, because {why}"

    @property
    def advice(self) -> str:
        """Return the step after which the requests pass; `lines` are to be added."""
        table = "the routers' table of clients (credentials in [router])"
        return f"correct the entry of {self.principal} in {table}" if self.refusal else f"add to {table}:"

    @property
    def advice_with_lines(self) -> str:
        return self.advice if self.refusal else f"{self.advice} {'; '.join(self.lines)}"


def missing_credentials(routers: Iterable[RouterPresence]) -> tuple[MissingCredential, ...]:
    """Merge the reports of all routers by link and principal."""
    found: dict[tuple[str, str], list[ClientWithoutCredential]] = {}
    for router in routers:
        for client in router.without_credential:
            found.setdefault((client.link, client.principal), []).append(client)
    return tuple(_merged(clients) for _, clients in sorted(found.items()))


def credential_findings(routers: Collection[RouterPresence]) -> list[Finding]:
    """Return a warning for each principal without a usable credential; if all have one, a finding that says so."""
    missing = [warn(_REF, each.text, each.advice_with_lines) for each in missing_credentials(routers)]
    names = ", ".join(sorted(router.name for router in routers))
    return missing or [ok("credentials-known", f"{names}: no client lacks a credential")]


def _merged(clients: list[ClientWithoutCredential]) -> MissingCredential:
    first = clients[0]
    names = {f"{each.client_id or 'a client without a name'} at {each.host}" for each in clients}
    return MissingCredential(
        first.link,
        first.cluster,
        first.principal,
        tuple(sorted(names)),
        any(each.writes for each in clients),
        tuple(sorted({group for each in clients for group in each.groups})),
        next((each.refusal for each in clients if each.refusal), ""),
        _lines(first),
    )


def _lines(client: ClientWithoutCredential) -> tuple[str, ...]:
    """Return the lines of the table for a client: TOML, with a name in quotes as in JSON."""
    keys = _SASL if client.asks_password else _CERTIFICATE
    names = f"{_quoted(client.principal or '*')}.clusters.{_quoted(client.cluster)}"
    return (f"[clients.{names}]", *(f'"{key}" = "…"' for key in keys))


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
