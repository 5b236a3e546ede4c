"""Compares the rights of kmigrate's principal on a cluster with the rights that kmigrate needs there.

The comparison is made before a migration, and changes nothing. A broker does not report rights on transactional ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.rights import read_rights
from kmigrate.errors import KmigrateError
from kmigrate.model.acl_commands import Permission, acl_command
from kmigrate.model.grants import CLUSTER_NAME, Grant, GrantUse, grants_of
from kmigrate.model.ids import OWN_PREFIX
from kmigrate.model.rights import Rights, Standing
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import NOTES_PREFIX
from kmigrate.state.topics import MAP_TOPIC, PRESENCE_TOPIC, STATE_TOPIC
from kmigrate.workflow.base.plan import Finding, ok, warn

__all__ = ["CheckedGrant", "Wanted", "check_grants", "needed_permissions", "rights_findings"]

_OWN_TOPICS = (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC)
_MOST_NAMED = 5
"""Maximum number of topics or groups that a finding names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics and groups of one side on which kmigrate will need rights."""

    side: str
    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    use: GrantUse = field(default_factory=GrantUse)


@dataclass(frozen=True, slots=True)
class CheckedGrant:
    """One right, and the names on which the principal lacks the right, or may lack the right."""

    grant: Grant
    missing: tuple[str, ...]
    unknown: tuple[str, ...]


async def rights_findings(client: ClusterClient, wanted: Wanted) -> list[Finding]:
    """Return which rights kmigrate's principal lacks on a cluster; a cluster without an answer is a warning."""
    own = _OWN_TOPICS if wanted.side == "target" else ()
    try:
        rights = await read_rights(client, [*dict.fromkeys((*own, *wanted.topics))], sorted(wanted.groups))
    except KmigrateError as error:
        return [warn("rights-unknown", f"rights on {client.settings.name} were not checked: {error.what}")]
    return _findings(client.settings, wanted, check_grants(rights, wanted))


def check_grants(rights: Rights, wanted: Wanted) -> list[CheckedGrant]:
    """Return each right that brokers report, with the names on which the right is missing or unknown."""
    found = []
    for grant in grants_of(wanted.side, wanted.use):
        if grant.resource != "TRANSACTIONAL_ID":
            names: dict[Standing, list[str]] = {standing: [] for standing in Standing}
            for name in _names(grant, wanted, rights):
                names[rights.standing(grant.resource, grant.operation, name)].append(name)
            found.append(CheckedGrant(grant, tuple(names[Standing.MISSING]), tuple(names[Standing.UNKNOWN])))
    return found


def _names(grant: Grant, wanted: Wanted, rights: Rights) -> Sequence[str]:
    """Return the names on which a right is needed: CREATE only for topics that the cluster does not have."""
    if grant.resource == "CLUSTER":
        return (CLUSTER_NAME,)
    if grant.resource == "GROUP":
        return sorted(wanted.groups)
    names = set(wanted.topics)
    if wanted.side == "target" and not grant.without and grant.operation != "DELETE":
        names |= set(_OWN_TOPICS)
    return sorted(names & rights.absent if grant.operation == "CREATE" else names)


def _findings(settings: ClusterSettings, wanted: Wanted, checked: Sequence[CheckedGrant]) -> list[Finding]:
    who, cluster = settings.security.principal, settings.name
    found = [_missing(settings, each) for each in checked if each.missing]
    if unknown := [each for each in checked if each.unknown]:
        rights = "; ".join(f"{each.grant.operation} on {_named(each.grant, each.unknown)}" for each in unknown)
        found.append(ok("rights-unknown", f"{cluster} does not report whether {who} has {rights}"))
    if not found:
        asked = f"{len(wanted.topics)} topics, {len(wanted.groups)} groups and the cluster"
        found.append(ok("rights", f"{who} has each right that kmigrate needs on {cluster}: asked about {asked}"))
    return found


def _missing(settings: ClusterSettings, checked: CheckedGrant) -> Finding:
    grant = checked.grant
    what = f"{settings.security.principal} lacks {grant.operation} on {_named(grant, checked.missing)} of "
    if grant.without:
        return warn("right-optional", f"{what}{settings.name}; without: {grant.without}", _command(settings, checked))
    return warn("right-missing", f"{what}{settings.name}; needed for: {grant.why}", _command(settings, checked))


def _command(settings: ClusterSettings, checked: CheckedGrant) -> str:
    if len(checked.missing) > _MOST_NAMED:
        return "kmigrate doctor --print-acls prints the commands that give kmigrate all rights"
    return str(acl_command(settings, checked.grant.resource, (checked.grant.operation,), checked.missing))


def _named(grant: Grant, names: Sequence[str]) -> str:
    if grant.resource == "CLUSTER":
        return "the cluster"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{grant.resource.lower()} {', '.join(names[:_MOST_NAMED])}{more}"


def needed_permissions(grants: Iterable[Grant], topics: Sequence[str], groups: Sequence[str]) -> list[Permission]:
    """Return the ACLs for rights on the named topics and groups; no names stand for all of them."""
    found = []
    for grant in grants:
        named = {"TOPIC": topics, "GROUP": groups}.get(grant.resource, ())
        found += [Permission(grant.resource, name, grant.operation, grant.prefixed) for name in named or (grant.name,)]
        if named and (grant.side, grant.resource, grant.without) == ("target", "TOPIC", ""):
            found.append(Permission("TOPIC", OWN_PREFIX, grant.operation, prefixed=True))
        if named and (grant.side, grant.resource, grant.operation) == ("source", "GROUP", "READ"):
            found.append(Permission("GROUP", NOTES_PREFIX, grant.operation, prefixed=True))
    return found
