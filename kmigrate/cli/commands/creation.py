"""The configs with which the mirror creates target topics, for guards that ask the target about these topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kmigrate.cli.base.call import Call
from kmigrate.cli.process.engine_settings import mirror_settings
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections

__all__ = ["creation_configs"]


def creation_configs(call: Call, connections: Connections, link: str) -> verbs.ConfigsOf:
    """Return a function that returns these configs, computed with the mirror's own settings."""

    async def configs_of(topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        # Imported here, because the mirror loads modules that no other part of the command needs.
        from kmigrate.mirror.link import Clusters
        from kmigrate.mirror.upkeep.topics import TopicMaker

        source, source_admin = await connections.source(verbs.resolve_link(connections.log.state, link))
        clusters = Clusters(source, connections.target, source_admin, connections.target_admin)
        maker = TopicMaker(clusters, mirror_settings(call.settings))
        return await maker.creation_configs(topics)

    return configs_of
