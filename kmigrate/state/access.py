"""Principals other than kmigrate that may write the state log, judged by the cluster's ACLs.

Every promise of kmigrate depends on kmigrate being the only writer of the state log. A cluster does not tell a client
its principal. With a SASL user name kmigrate knows its own principal. Without such a name a single writer is taken for
kmigrate; any further writer, and the wildcard `User:*`, counts as another writer.
"""

from __future__ import annotations

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.acls import TOPIC, writers
from kmigrate.model.ids import OWN_PREFIX
from kmigrate.model.security import Login
from kmigrate.state.log import PRESENCE_TOPIC, STATE_TOPIC
from kmigrate.state.offset_maps import MAP_TOPIC

__all__ = ["closing_acl", "open_to_everybody", "other_writers"]

_EVERYBODY = "User:*"
_TOPICS = (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC)
_FOR_ALL = "allow.everyone.if.no.acl.found"


async def open_to_everybody(client: ClusterClient) -> str:
    """Return why every client may write kmigrate's topics, or '' if an ACL may prevent that.

    Raise as `other_writers` does.
    """
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
