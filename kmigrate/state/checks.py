"""Checks around the state log: other writers, records that kmigrate did not write, two clusters with the same id.

Every promise of kmigrate depends on kmigrate being the only writer of the state log. A cluster does not tell a client
its principal: without a SASL user name of its own, kmigrate takes a single writer for itself. Any further writer, and
the wildcard `User:*`, counts as another writer.

Clones of a cluster, and clusters of a template, share a cluster id. The target's state log tells them apart: another
cluster lacks the state topic, has it with another topic id, or has a presence log with another end.
"""

from __future__ import annotations

from uuid import UUID

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.errors import Failed, KmigrateError, Refused
from kmigrate.model.acls import TOPIC, writers
from kmigrate.model.ids import OWN_PREFIX
from kmigrate.model.security import Login
from kmigrate.state.log import StateLog
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.state.read import read_whole
from kmigrate.state.topics import MAP_TOPIC, PRESENCE_TOPIC, STATE_TOPIC, refuse_topic_error

__all__ = [
    "closing_acl",
    "find_strays",
    "is_other_cluster",
    "open_to_everybody",
    "other_writers",
    "refuse_same_cluster",
]

_EVERYBODY = "User:*"
_TOPICS = (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC)
_FOR_ALL = "allow.everyone.if.no.acl.found"


async def open_to_everybody(client: ClusterClient) -> str:
    """Return why every client may write kmigrate's topics, '' if an ACL may prevent that; raise as `other_writers`."""
    rules = await read_acls(client)
    if rules is None:
        return "it has no authorizer"
    if all(any(rule.covers(TOPIC, topic) for rule in rules) for topic in _TOPICS):
        return ""
    try:
        with Admin(client.settings) as admin:
            found = (await admin.broker_configs(min(client.metadata.brokers))).get(_FOR_ALL)
    except KmigrateError:
        return ""
    if found is None or found.value == "false":
        return ""
    return f"no ACL is about them, and its brokers may have {_FOR_ALL}=true"


def closing_acl(client: ClusterClient) -> str:
    """Return the command that lets kmigrate's principal alone use kmigrate's topics."""
    sasl = client.settings.security.sasl
    who = f"User:{sasl.username}" if isinstance(sasl, Login) else "User:KMIGRATE"
    return (
        f"kafka-acls.sh --bootstrap-server {client.settings.bootstrap_servers} --add --allow-principal {who} "
        f"--operation All --topic {OWN_PREFIX} --resource-pattern-type prefixed"
    )


async def other_writers(client: ClusterClient) -> tuple[str, ...]:
    """Return the other principals that may write a state topic; raise if the ACLs cannot be read."""
    rules = await read_acls(client) or frozenset()
    found = {each for topic in _TOPICS for each in writers(rules, topic)}
    sasl = client.settings.security.sasl
    ours = f"User:{sasl.username}" if isinstance(sasl, Login) else ""
    others = found - {ours}
    one_is_ours = not ours and len(others) == 1 and others != {_EVERYBODY}
    return () if one_is_ours else tuple(sorted(others))


_NO_ID = UUID(int=0)


async def is_other_cluster(cluster: ClusterClient, target: ClusterClient) -> bool:
    """Return whether a cluster is surely another cluster than the target; both clients have read metadata."""
    if cluster.metadata.cluster_id != target.metadata.cluster_id:
        return True
    here, there = await cluster.topic(STATE_TOPIC), await target.topic(STATE_TOPIC)
    if here is not None:
        refuse_topic_error(cluster, here)
    if here is None or there is None:
        return here is not there
    ids = {here.topic_id, there.topic_id}
    return (len(ids) == 2 and ids.isdisjoint((None, _NO_ID))) or await _ends_elsewhere(cluster, target)


async def _ends_elsewhere(cluster: ClusterClient, target: ClusterClient) -> bool:
    """Return whether the cluster's presence log ends elsewhere: the target's grows twice a second per process."""
    key = (PRESENCE_TOPIC, 0)
    try:
        before = (await target.list_offsets({key: LATEST}))[key]
        here = (await cluster.list_offsets({key: LATEST}))[key]
        after = (await target.list_offsets({key: LATEST}))[key]
    except Failed:
        return False
    all_known = not (before.error or here.error or after.error)
    return all_known and not before.offset <= here.offset <= after.offset


async def refuse_same_cluster(source: ClusterClient, target: ClusterClient) -> None:
    """Raise Refused unless the source is surely another cluster than the target; both clients have read metadata."""
    if await is_other_cluster(source, target):
        return
    one, other = source.settings.name, target.settings.name
    raise Refused(
        "source-is-target",
        f"the clusters {one} and {other} have the same cluster id ({source.metadata.cluster_id}), and both show the "
        "state log of the target",
        still_true="nothing was changed",
        next_step=f"correct the bootstrap addresses of [clusters.{one}] and [clusters.{other}]. If {one} is a clone of "
        f"{other}, with a copy of the state log: repeat the command while a process of kmigrate runs for {other} "
        "(kmigrate controller run); the presence log then tells the clusters apart",
    )


async def find_strays(client: ClusterClient) -> list[str]:
    """Return in words the records of kmigrate's topics that kmigrate did not write; raise as `read_state` does."""
    topics = (await client.refresh([STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC])).topics
    found = []
    if STATE_TOPIC in topics:
        fold, _ = await read_whole(client, STATE_TOPIC, purpose="state-look")
        found.append(fold.strays.text(STATE_TOPIC))
    if PRESENCE_TOPIC in topics:
        found.append((await StateLog(client).find_presence_strays()).text(PRESENCE_TOPIC))
    if MAP_TOPIC in topics:
        maps = OffsetMaps(client)
        await maps.read_to_end()
        found.append(maps.strays.text(MAP_TOPIC))
    return [each for each in found if each]
