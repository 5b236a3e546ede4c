"""Who but kmigrate may write the state log, as the cluster's own rules tell (EO-95).

Everything that kmigrate promises rests on its being the only writer there. A cluster does not say under which name it
knows us; where no login of ours tells it, every writer but one is one too many, and so is everybody.
"""

from __future__ import annotations

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.client import ClusterClient
from kmigrate.model.acls import writers
from kmigrate.model.security import Login
from kmigrate.state.log import PRESENCE_TOPIC, STATE_TOPIC
from kmigrate.state.offset_maps import MAP_TOPIC

__all__ = ["other_writers"]

_EVERYBODY = "User:*"


async def other_writers(client: ClusterClient) -> tuple[str, ...]:
    """Principals beside ours that may write one of the state topics; raises where the rules cannot be read."""
    rules = await read_acls(client) or frozenset()
    found = {each for topic in (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC) for each in writers(rules, topic)}
    sasl = client.settings.security.sasl
    ours = f"User:{sasl.username}" if isinstance(sasl, Login) else ""
    others = found - {ours}
    one_is_ours = not ours and len(others) == 1 and others != {_EVERYBODY}
    return () if one_is_ours else tuple(sorted(others))
