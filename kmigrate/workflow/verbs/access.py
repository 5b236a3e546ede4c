"""What a look at both clusters' access rules says beforehand: whether there are any, and which ones will be carried."""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.cluster.acls import read_acls
from kmigrate.errors import KmigrateError
from kmigrate.model.acls import topic_rights
from kmigrate.model.records import LinkRecord
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.plan import Finding

__all__ = ["access_findings"]


async def access_findings(estate: Estate, link: LinkRecord, topics: Sequence[str] = ()) -> list[Finding]:
    """One finding on the link, and one on each of the topics that has rules."""
    try:
        source, _ = await estate.source(link)
        ours, theirs = await read_acls(source), await read_acls(estate.target)
    except KmigrateError as error:
        return [Finding("warn", error.ref, error.what, error.next_step)]
    if ours is None:
        return [Finding("ok", "acls", f"source {link.source.name} has no authorizer: there are no ACLs to carry over")]
    if theirs is None:
        return [Finding("ok", "acls", f"target {link.target.name} has no authorizer: no ACLs are carried over")]
    found = [Finding("ok", "acls", "both clusters have an authorizer: ACLs of mirrored topics and groups are carried")]
    for topic in topics:
        rights = topic_rights(ours, topic)
        if rights.promoted:
            found.append(
                Finding(
                    "ok",
                    "topic-acls",
                    f"topic {topic}: {len(rights.now)} ACLs while it is mirrored, {len(rights.promoted)} from its "
                    "promote on",
                )
            )
    return found
