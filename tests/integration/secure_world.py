"""A secure pair for tests: SASL_SSL on both sides, an authorizer, and kmigrate with its least privileges.

Each cluster has a further listener that demands a client certificate. The first listener accepts bearer tokens too, and
ends sessions after a few seconds, so that every longer test sees renewals. The authorizers log every decision.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmigrate.model.security import Login, Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import link_of_notes
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.ports import free_ports
from tests.clusters import running, shared

SESSION_MS = 2500
MOVER = "the-same-on-both"
"""Password of `mover`, a user who may log in to both clusters by PLAIN with the same password."""
STRANGER = "a-password-without-rights"
"""Password of `stranger`, a PLAIN user of both clusters; no test gives this user a right for longer than the test."""
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


@dataclass(frozen=True)
class SecurePair:
    """Both clusters, ready, and the ports of their listeners that want a client certificate."""

    source: KafkaCluster
    target: KafkaCluster
    certificate_ports: dict[str, int]

    def settings(self, side: str, user: str = "kmigrate", mechanism: str = "SCRAM-SHA-512") -> ClusterSettings:
        """Return a side's settings as kmigrate's configuration would hold them."""
        cluster = self.source if side == "source" else self.target
        access = cluster.security.access(user, mechanism)
        login = Login(mechanism, user, "", access.password_file)
        return reached(side, cluster.bootstrap, Security(Tls(access.ca_file), login))


def reached(name: str, bootstrap: str, security: Security) -> ClusterSettings:
    host, port = bootstrap.rsplit(":", 1)
    return ClusterSettings(name, ((host, int(port)),), request_timeout_s=10.0, security=security)


def without_notes(groups: Iterable[str]) -> list[str]:
    """Return the groups that hold no notes about a way back; other tests leave such notes."""
    return [each for each in groups if not link_of_notes(each)]


def secure_pair() -> Iterator[SecurePair]:
    root = Path(tempfile.mkdtemp(prefix="kmigrate-secure-"))
    clusters: list[KafkaCluster] = []
    try:
        ports = {}
        for name, version in (("source", SOURCE_VERSION), ("target", TARGET_VERSION)):
            spec = ClusterSpec(name, version, secure=True, config={"connections.max.reauth.ms": str(SESSION_MS)})
            clusters.append(KafkaCluster.create(spec, root))
            ports[name] = _add_listeners(clusters[-1])
        with ThreadPoolExecutor() as threads, pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug")
            list(threads.map(KafkaCluster.start, clusters))
            list(threads.map(KafkaCluster.wait_ready, clusters))
            list(threads.map(KafkaCluster.admit, clusters))
        with running(clusters), shared(clusters):
            yield SecurePair(clusters[0], clusters[1], ports)
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


def _add_listeners(cluster: KafkaCluster) -> int:
    """Append listeners to a broker's properties; a later line of a properties file wins over an earlier line."""
    broker = cluster.brokers[1]
    (port,) = free_ports(1)
    listeners = f"SASL_SSL://127.0.0.1:{broker.port},SSL://127.0.0.1:{port}"
    extra = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL,SSL:SSL",
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": f'{_OAUTH} unsecuredLoginStringClaim_sub="x";',
    }
    plain = "listener.name.sasl_ssl.plain.sasl.jaas.config"
    (users,) = (
        line.partition("=")[2] for line in broker.properties.read_text("utf-8").splitlines() if line.startswith(plain)
    )
    if cluster.spec.name == "target":  # The source identifies a client by the whole subject, as brokers do by default.
        extra["listener.name.ssl.ssl.principal.mapping.rules"] = "RULE:^CN=([a-z]+)$/$1/,DEFAULT"
    extra[plain] = users.replace(";", f' user_mover="{MOVER}" user_stranger="{STRANGER}";')
    with broker.properties.open("a", encoding="utf-8") as file:
        file.writelines(f"{key}={value}\n" for key, value in extra.items())
    return port


_DECISION = re.compile(r"Principal = User:(\S+) is (Allowed|Denied) operation = (\S+) from .* on resource = (\w+):")


def log_size(cluster: KafkaCluster) -> int:
    """Return the bytes of the authorizer's log so far."""
    return cluster.brokers[1].log.stat().st_size


def decisions(cluster: KafkaCluster, user: str, word: str, since: int = 0) -> set[tuple[str, str]]:
    """Return the kinds of resource and operations that the authorizer allowed or denied a user since a log size."""
    text = cluster.brokers[1].log.read_bytes()[since:].decode("utf-8", errors="replace")
    return {
        (resource.upper(), operation)
        for who, decided, operation, resource in _DECISION.findall(text)
        if (who, decided) == (user, word)
    }


def token(subject: str, seconds: float = 60) -> str:
    """Return a JSON Web Token without a signature, which these brokers accept."""
    now = time.time()

    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + seconds})}."
