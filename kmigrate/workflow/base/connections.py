"""Connections to one target cluster, its state log, and the source of each of its links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Refused, Unreachable
from kmigrate.model.presences import ControllerPresence
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.state.checks import refuse_same_cluster
from kmigrate.state.log import StateLog
from kmigrate.state.topics import ensure_state_log

__all__ = ["Connections", "LinkClusters", "check_cluster_id", "reach"]

PATIENCE_S = 12.0
"""Seconds of silence until a cluster is unreachable: a hung cluster accepts connections, and requests wait longer."""


async def reach(client: ClusterClient) -> None:
    """Wait until a cluster has answered with its metadata; raises Unreachable."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await client.refresh([])
    except TimeoutError:
        settings = client.settings
        raise Unreachable(
            "cluster-unreachable",
            f"no broker of cluster {settings.name} ({settings.bootstrap_servers}) has answered within {PATIENCE_S:g} s",
            still_true="nothing was changed",
            next_step=f"check the bootstrap address of [clusters.{settings.name}] and that its brokers run",
        ) from None


def check_cluster_id(ref: ClusterRef, answered: str) -> None:
    """Refuse a bootstrap address that now leads to another cluster than the cluster that the link was made for."""
    if ref.cluster_id and answered != ref.cluster_id:
        raise Refused(
            "other-cluster-answers",
            f"the bootstrap address of cluster {ref.name} answers with cluster id {answered}, "
            f"but the link was made for {ref.cluster_id}",
            still_true="nothing was changed",
            next_step=f"correct [clusters.{ref.name}] or make a new link",
        )


@dataclass(frozen=True, slots=True)
class LinkClusters:
    """The state log and both clusters of one link."""

    log: StateLog
    source: ClusterClient
    source_admin: Admin
    target: ClusterClient
    target_admin: Admin


class Connections:
    """The target, its state log and the sources, which are connected when first needed; closes all of them."""

    def __init__(self, settings_of: Callable[[str], ClusterSettings], target: str) -> None:
        self.settings_of = settings_of
        settings = settings_of(target)
        self.target = ClusterClient(settings)
        self.target_admin = Admin(settings)
        self.log = StateLog(self.target)
        self.warnings: list[tuple[str, str]] = []
        """Warnings about the state log for a person, each with its reference."""
        self.asking: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Shows a person what kmigrate waits for, for as long as the wait lasts."""
        self._sources: dict[str, tuple[ClusterClient, Admin]] = {}
        self._distinct: set[str] = set()
        """Names of sources that are proven to be other clusters than the target."""

    @classmethod
    async def open(
        cls, settings_of: Callable[[str], ClusterSettings], target: str, *, create: bool = False
    ) -> Connections:
        """Connect to the target and read its state log; `create` creates a missing log."""
        self = cls(settings_of, target)
        try:
            if create:
                self.warnings = await ensure_state_log(self.target, self.target_admin)
            await self.log.open()
            for link in self.log.state.links():
                check_cluster_id(link.target, self.target.metadata.cluster_id)
        except BaseException:
            await self.close()
            raise
        return self

    async def source(self, link: LinkRecord) -> tuple[ClusterClient, Admin]:
        """Return the link's source, checked to be the cluster that the link was made for."""
        name = link.source.name
        if name not in self._sources:
            settings = self.settings_of(name)
            self._sources[name] = (ClusterClient(settings), Admin(settings))
        client, admin = self._sources[name]
        if not client.metadata.cluster_id:
            with self.asking(f"asking source {name}"):
                await reach(client)
        check_cluster_id(link.source, client.metadata.cluster_id)
        if name not in self._distinct:
            await refuse_same_cluster(client, self.target)
            self._distinct.add(name)
        return client, admin

    def waits_for(self, record: TopicRecord | GroupRecord) -> str:
        """Return what a promote waits for, as its controller reports the wait; '' without a report."""
        reasons = (controller.waits.get(record.key, "") for controller in self.log.alive(ControllerPresence))
        return next(filter(None, reasons), "")

    async def close(self) -> None:
        await self.log.close()
        for client, admin in self._sources.values():
            await client.close()
            admin.close()
        await self.target.close()
        self.target_admin.close()

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
