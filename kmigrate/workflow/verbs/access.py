"""Compares both clusters' ACLs before a migration: whether there are any, and which ACLs will be carried over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.acls import Acl, host_bound, topic_rights
from kmigrate.model.records import LinkRecord
from kmigrate.state.checks import closing_acl, open_to_everybody, other_writers
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, warn

__all__ = ["access_findings", "host_findings", "state_findings"]

_MOST_NAMED = 5
"""Maximum number of a topic's ACLs that a finding names."""


async def access_findings(connections: Connections, link: LinkRecord, topics: Sequence[str] = ()) -> list[Finding]:
    """Return a finding for the link, and for each topic findings on its ACLs and on ACLs that name a host."""
    try:
        source, _ = await connections.source(link)
        ours, theirs = await read_acls(source), await read_acls(connections.target)
    except KmigrateError as error:
        return [warn(error.ref, error.what, error.next_step)]
    if ours is None:
        return [ok("acls", f"source {link.source.name} has no authorizer: there are no ACLs to carry over")]
    bound = [finding for topic in topics for finding in host_findings(ours, topic)]
    if theirs is None:
        return [ok("acls", f"target {link.target.name} has no authorizer: no ACLs are carried over"), *bound]
    found = [ok("acls", "both clusters have an authorizer: ACLs of mirrored topics and groups are carried")]
    for topic in topics:
        rights = topic_rights(ours, topic)
        if rights.promoted:
            found.append(
                ok(
                    "topic-acls",
                    f"topic {topic}: {len(rights.now)} ACLs while it is mirrored, {len(rights.promoted)} from its "
                    "promote on",
                )
            )
    return [*found, *bound]


def host_findings(rules: Collection[Acl], topic: str) -> list[Finding]:
    """Return a warning where the source's ACLs name a topic's clients by host: a router's clients have its address."""
    bound = host_bound(rules, topic)
    if not bound:
        return []
    more = f" and {len(bound) - _MOST_NAMED} more" if len(bound) > _MOST_NAMED else ""
    return [
        warn(
            "host-rules",
            f"topic {topic} has ACLs for single hosts: {'; '.join(map(str, bound[:_MOST_NAMED]))}{more}; both clusters "
            "see a client of a router at the router's address, so these ACLs match no client of a router",
            "before clients move, give the source the same ACLs for the routers' addresses: they are carried over",
        )
    ]


async def state_findings(target: ClusterClient) -> list[Finding]:
    """Warn where others than kmigrate may write kmigrate's own topics."""
    try:
        for_all = await open_to_everybody(target)
        others = () if for_all else await other_writers(target)
    except KmigrateError:
        return []  # other verbs report a principal that may not read the ACLs
    if for_all:
        return [
            warn(
                "state-open",
                f"everybody who reaches {target.settings.name} may write, alter and delete kmigrate's topics there: "
                f"{for_all}. Routers refuse that to their clients; the brokers do not",
                f"have the brokers keep all others out: {closing_acl(target)}",
            )
        ]
    if not others:
        return []
    return [
        warn(
            "state-writable",
            f"{', '.join(others)} may write the state log of {target.settings.name}: kmigrate's promises hold only "
            "while nobody else does",
            f"take WRITE on __kmigrate_* from all but kmigrate's own principal: {closing_acl(target)}",
        )
    ]
