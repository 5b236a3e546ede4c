"""What a look at both clusters' access rules says beforehand: whether there are any, and which ones will be carried."""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.acls import topic_rights
from kmigrate.model.records import LinkRecord
from kmigrate.state.access import other_writers
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.plan import Finding

__all__ = ["access_findings", "state_findings"]


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


async def state_findings(target: ClusterClient) -> list[Finding]:
    """A warning where others than kmigrate may write the state log (EO-95)."""
    try:
        others = await other_writers(target)
    except KmigrateError:
        return []  # whoever may not read the rules is told so where they are needed
    if not others:
        return []
    return [
        Finding(
            "warn",
            "state-writable",
            f"{', '.join(others)} may write the state log of {target.settings.name}: kmigrate's promises hold only "
            "while nobody else does",
            "take WRITE on __kmigrate_* from all but kmigrate's own principal",
        )
    ]
