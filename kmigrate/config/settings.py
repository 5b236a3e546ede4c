"""The whole configuration, a frozen value with origins; the dataclasses are the file's grammar (sections and keys)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmigrate.errors import UsageError
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.nearest import nearest
from kmigrate.model.reports import HookPoint
from kmigrate.model.settings import ClusterSettings

__all__ = [
    "Defaults",
    "FinishSection",
    "HooksSection",
    "HttpSection",
    "LogSection",
    "MetricsSection",
    "MirrorSection",
    "PromoteSection",
    "RouterSection",
    "Settings",
]


def _key(default: Any, expected: str, *, low: float | None = None, high: float | None = None, **more: Any) -> Any:
    """Return a key of a section: its default, and the allowed values in words and in bounds."""
    return field(default=default, metadata={"expected": expected, "low": low, "high": high, **more})


_PORT = {"low": 0, "high": 65535}
_LINK = LinkSettings()


def _link_key(name: str, expected: str, **more: Any) -> Any:
    """Return a key that is the default of a new link's setting of the same name."""
    return _key(getattr(_LINK, name), expected, of_link=True, **more)


@dataclass(frozen=True, slots=True)
class RouterSection:
    """`[router]`: the listeners of this process."""

    name: str = _key("router", "a name; of routers that run at the same time, each needs another name")
    host: str = _key("127.0.0.1", "the address to listen on")
    port: int = _key(0, "the bootstrap listener's port, 0 for a free one", **_PORT)
    advertised_host: str = _key("", "the address that clients are told; '' for host")
    broker_ports: int | Mapping[int, int] = _key(
        0,
        "n: target broker b gets the listener port n + b, or is counted through the sorted ids where that exceeds "
        "65535; 0: the same from port + 1 on, where free; or a table with the port of each target broker, such as "
        "{ 1 = 9101, 2 = 9102 }",
        **_PORT,
        by_node=True,
    )
    fallback_ports: int = _key(
        0,
        "n: the listeners for clients of other routers get ports from n to n + 99; 0: from port + 100 on, where free",
        **_PORT,
    )
    security_protocol: str = _key(
        "PLAINTEXT",
        "what the listeners speak: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    certificate: str = _key("", "a PEM file with the listeners' certificate and its chain")
    key: str = _key("", "a PEM file with its private key")
    key_password: str = _key("", "the key's password, best as { env = … } or { file = … }", hidden=True)
    client_ca: str = _key("", "a PEM file with the authority of clients' certificates, which are then demanded")
    login: str = _key(
        "pass-through",
        "who judges the logins of clients: the target (pass-through), or the router (mapped)",
        choices=("pass-through", "mapped"),
    )
    sasl_mechanisms: tuple[str, ...] = _key((), "a list of SASL mechanisms that are offered; empty: all there are")
    credentials: str = _key("", "a TOML file: as whom clients meet the clusters (docs/security.md)")
    login_timeout_ms: int = _key(20_000, "how long a client may take until it is logged in, ms", low=100, high=600_000)
    hold_limit_ms: int = _key(5000, "how long a Produce request is held at most, ms", low=100, high=5000)
    max_connections: int = _key(10_000, "how many connections of clients are taken at most", low=1, high=1_000_000)
    max_connections_per_address: int = _key(
        0, "how many of them one host may have, 0 for any number", low=0, high=1_000_000
    )
    max_connections_before_login: int = _key(
        1_000,
        "how many connections beside these may be in their handshake or before their login",
        low=1,
        high=1_000_000,
    )
    max_buffered_bytes: int = _key(
        1 << 30, "memory that is kept for all clients together at most, bytes", low=1 << 24, high=1 << 40
    )
    read_ahead_bytes: int = _key(
        128 << 20,
        "memory for answers that are asked for before their clients do, bytes; 0: none is",
        low=0,
        high=1 << 40,
    )
    max_idle_s: float = _key(
        600.0, "how long a connection may be without a request before it is closed, s", low=1, high=86_400
    )
    max_request_bytes: int = _key(
        128 << 20, "the longest request that is taken, bytes", low=1 << 16, high=(1 << 31) - 1
    )
    leave_per_s: float = _key(
        10.0, "how many connections a second are ended once the links are finished", low=0.1, high=1000
    )


@dataclass(frozen=True, slots=True)
class MirrorSection:
    """`[mirror]`: how a link is copied; keys that shape the target are defaults of new links."""

    hole_filler: str = _key(
        "markers",
        "how offsets without a record are filled: markers, or transactions where CLUSTER_ACTION is not allowed",
        choices=("markers", "transactions"),
    )
    hole_limit: int = _link_key(
        "hole_limit", "most offsets without a record in a row that are filled", low=1, high=2_000_000_000
    )
    align_limit: int = _link_key(
        "align_limit", "most offsets below a partition's log start that are filled", low=0, high=1_000_000_000_000
    )
    follow_log_start: bool = _link_key(
        "follow_log_start",
        "true or false: whether the copy loses what the source deletes, by retention or DeleteRecords",
    )
    disk_min_free_percent: float = _key(
        5.0,
        "how much of a target broker's disk stays free: below that nothing is copied to it, percent; 0: no limit",
        low=0,
        high=99,
    )
    disk_min_free_bytes: int = _key(0, "the same in bytes, where that is more; 0: no limit", low=0, high=1 << 50)
    fetch_max_bytes: int = _key(32 << 20, "most bytes of one Fetch answer", low=1 << 16, high=1 << 30)
    rack: str = _key("", "the rack of this process, to read from source followers in it; '' for leaders alone")
    write_connections: int = _key(
        1, "connections to each target leader: more where its replicas acknowledge slowly", low=1, high=16
    )
    windows: str = _key(
        "long",
        "how many transactions of a partition share a round trip: many (long), one (short), or none (apart, two each)",
        choices=("long", "short", "apart"),
    )
    lease_s: float = _key(3.0, "silence after which another mirror takes over, s", low=1, high=300)
    upkeep_interval_s: float = _key(
        5.0, "how often partitions, configs, ACLs and new names of the source are looked at, s", low=0.5, high=3600
    )
    raise_producer_expiration: bool = _key(
        True, "true or false: whether the target's producer.id.expiration.ms is raised while a link mirrors"
    )
    sync_acls: bool = _link_key(
        "sync_acls", "true or false: whether the target gets the ACLs of mirrored topics and groups"
    )
    acl_exclude: tuple[str, ...] = _link_key(
        "acl_exclude", "a list of regular expressions: principals whose ACLs are not carried over", regex=True
    )
    config_exclude: tuple[str, ...] = _link_key(
        "config_exclude", "a list of regular expressions: topic configs that are not replicated", regex=True
    )
    use_defaults_from: str = _link_key(
        "use_defaults_from",
        "whose defaults a promoted topic has where nothing is set on it: source or target",
        choices=("source", "target"),
    )
    presence_interval_ms: int = _key(500, "how often a mirror tells its progress, ms", low=50, high=10_000)


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """`[metrics]`: the figures that a running process serves."""

    listen: str = _key("", "host:port, or a port of 127.0.0.1, where /metrics is served; '' for nowhere")


@dataclass(frozen=True, slots=True)
class HttpSection:
    """`[http]`: the web page that a running controller serves."""

    listen: str = _key("", "host:port, or a port of 127.0.0.1, where the web page is served; '' for nowhere")


@dataclass(frozen=True, slots=True)
class LogSection:
    """`[log]`: the log of a running process."""

    format: str = _key("text", "text for a person, or json: a JSON document per line", choices=("text", "json"))
    level: str = _key(
        "info", "the least level that is written: info, warning or error", choices=("info", "warning", "error")
    )


@dataclass(frozen=True, slots=True)
class PromoteSection:
    """`[promote]`: when a promote may fence, and how long a fence may hold requests; mostly defaults of new links."""

    lag_threshold: int = _link_key("lag_threshold", "records a topic may lag when it is fenced", low=0, high=10**9)
    pending_timeout_s: float = _link_key(
        "pending_timeout_s", "how long to wait for the lag before giving up, s", low=1, high=86_400
    )
    fence_timeout_s: float = _link_key(
        "fence_timeout_s", "how long a fence may last before it is lifted, s", low=1, high=60
    )
    straggler_window_s: float = _link_key(
        "straggler_window_s",
        "how long a direct writer must be silent until a promote takes it for gone, s",
        low=0,
        high=3600,
    )
    router_silent_s: float = _link_key(
        "router_silent_s",
        "how long a router must be silent until the source broker holds the fence in its place, s",
        low=1,
        high=600,
    )
    deny_writers: bool = _link_key(
        "deny_writers",
        "keep other writers out of the source by deny ACLs while a promote can be taken back: true or false",
    )
    auto_settle_s: float = _key(
        30.0,
        "how long a group has no member on the source until the controller promotes it by itself (--auto), s",
        low=1,
        high=86_400,
    )
    hold_source_groups: bool = _key(True, "keep members out of a promoted group on the source: true or false")


@dataclass(frozen=True, slots=True)
class FinishSection:
    """`[finish]`: how long producers may repeat a write, before a link is finished or deleted, or a topic forgotten."""

    delivery_timeout_s: float = _key(
        120.0, "the longest delivery.timeout.ms (message.timeout.ms) of all producers, s", low=0, high=86_400
    )


_COMMAND = "a list of words: the command that the controller runs {}; empty: none"


@dataclass(frozen=True, slots=True)
class HooksSection:
    """`[hooks]`: commands that the controller runs at points of promotes and rollbacks."""

    before_fence: tuple[str, ...] = _key((), _COMMAND.format("before a topic's fence, and whose failure gives up"))
    after_flip: tuple[str, ...] = _key((), _COMMAND.format("after the promote of a topic or group"))
    given_up: tuple[str, ...] = _key((), _COMMAND.format("after a promote or rollback that was given up"))
    rolled_back: tuple[str, ...] = _key((), _COMMAND.format("after a rollback"))
    timeout_s: float = _key(30.0, "how long a command may take until it is killed, s", low=0.1, high=3600)

    def command(self, point: HookPoint) -> tuple[str, ...]:
        """Return the command of a point; empty where the configuration names none."""
        found: tuple[str, ...] = getattr(self, point.value.replace("-", "_"))
        return found


@dataclass(frozen=True, slots=True)
class Defaults:
    """`[defaults]`: values that commands use if a flag is missing."""

    target: str = _key("", "the name of a cluster")
    link: str = _key("", "the name of a link")
    process_wait_s: float = _key(
        30.0, "how long a verb waits until a mirror or controller process is heard of, s", low=0, high=3600
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration; `origins` has the origin of every given key."""

    path: Path | None = None
    clusters: Mapping[str, ClusterSettings] = field(default_factory=dict)
    router: RouterSection = field(default_factory=RouterSection)
    mirror: MirrorSection = field(default_factory=MirrorSection)
    promote: PromoteSection = field(default_factory=PromoteSection)
    finish: FinishSection = field(default_factory=FinishSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    http: HttpSection = field(default_factory=HttpSection)
    log: LogSection = field(default_factory=LogSection)
    hooks: HooksSection = field(default_factory=HooksSection)
    defaults: Defaults = field(default_factory=Defaults)
    origins: Mapping[str, str] = field(default_factory=dict)

    def cluster(self, name: str) -> ClusterSettings:
        """Return a named cluster, or raise a usage error that lists the configured clusters."""
        found = self.clusters.get(name)
        if found is None:
            raise UsageError(
                "unknown-cluster",
                f"no cluster named {name!r} is configured in {self.place}{nearest(name, self.clusters)}",
                still_true="nothing was contacted or changed",
                next_step=f'add [clusters.{name}] with "bootstrap.servers" = "host:port"; '
                f"configured: {', '.join(sorted(self.clusters)) or 'none'}",
            )
        return found

    @property
    def place(self) -> str:
        """The origin of the configuration, for a person."""
        return str(self.path) if self.path else "the environment (there is no ./kmigrate.toml, and no file was named)"
