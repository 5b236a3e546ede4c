"""The engines that a process may run, and their settings; apart from the engines, which most commands do not need."""

from __future__ import annotations

import os
from collections.abc import Collection
from enum import Flag, auto

from kmigrate.config.listener_access import access_of
from kmigrate.config.settings import Settings
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.grants import GrantUse
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.listener_access import ListenerAccess, check_access
from kmigrate.model.settings import ClusterSettings
from kmigrate.router.settings import RouterSettings

__all__ = ["Engine", "grant_use", "mirror_settings", "router_settings"]


class Engine(Flag):
    """A set of engines."""

    MIRROR = auto()
    ROUTER = auto()
    CONTROLLER = auto()


def router_settings(
    settings: Settings, target: ClusterSettings, sources: Collection[ClusterSettings]
) -> RouterSettings:
    """Return the router's settings; refuse listeners that could not enforce the clusters' own rules on access."""
    section = settings.router

    def read_access() -> ListenerAccess:
        access = access_of(settings, os.environ)
        check_access(access, target, sources)
        return access

    ports = section.broker_ports
    return RouterSettings(
        name=section.name,
        host=section.host,
        port=section.port,
        node_port_base=ports if isinstance(ports, int) else 0,
        node_ports=ports if not isinstance(ports, int) else {},
        fallback_ports=section.fallback_ports,
        advertised_host=section.advertised_host,
        hold_limit_s=section.hold_limit_ms / 1000,
        max_frame=section.max_request_bytes,
        max_connections=section.max_connections,
        max_per_address=section.max_connections_per_address,
        max_before_login=section.max_connections_before_login,
        max_buffered=section.max_buffered_bytes,
        read_ahead=section.read_ahead_bytes,
        max_idle_s=section.max_idle_s,
        leave_per_s=section.leave_per_s,
        access=read_access(),
        read_access=read_access if section.credentials else None,
        login_s=section.login_timeout_ms / 1000,
    )


def mirror_settings(settings: Settings) -> MirrorSettings:
    section = settings.mirror
    return MirrorSettings(
        fetch_max_bytes=section.fetch_max_bytes,
        lease_s=section.lease_s,
        presence_ms=section.presence_interval_ms,
        rack=section.rack,
        write_connections=section.write_connections,
        hole_filler=HoleFiller(section.hole_filler),
        windows=section.windows != "apart",
        long_windows=section.windows == "long",
        disk_min_free_percent=section.disk_min_free_percent,
        disk_min_free_bytes=section.disk_min_free_bytes,
        upkeep_s=section.upkeep_interval_s,
        raise_expiration=section.raise_producer_expiration,
    )


def grant_use(settings: Settings, link: LinkSettings | None = None) -> GrantUse:
    """Return the settings on which the rights of kmigrate's principal depend; without a link those of a new link."""
    mirror = settings.mirror
    sync_acls = mirror.sync_acls if link is None else link.sync_acls
    by_markers = mirror.hole_filler == HoleFiller.MARKERS
    return GrantUse(sync_acls, by_markers, mirror.raise_producer_expiration)
