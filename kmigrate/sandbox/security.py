"""The security of a sandbox cluster: a certificate authority of its own, users, passwords and ACLs.

    create(folder) → broker_properties(…) … the cluster starts … → admit(bootstrap, grants)

Keys and passwords are created at run time and removed with the cluster; this repository holds none. Each cluster has
its own, so that credentials of a cluster never work for the other cluster by accident.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from kmigrate.errors import Failed
from kmigrate.model.grants import GRANTS
from kmigrate.sandbox.client_specs import DEMO_GROUPS, Access

__all__ = ["CLIENT_USERS", "USERS", "Permit", "SandboxSecurity", "permits", "router_section", "write_private"]

USERS = ("broker", "admin", "kmigrate", "producers", "consumers")
"""The users. `broker` and `admin` are super users; the others may do only what ACLs grant them."""

CLIENT_USERS: Mapping[str, str] = {"producer": "producers", "transactional": "producers", "consumer": "consumers"}
"""The users of the live clients, by role."""

_CLIENT_LISTENER, _CONTROLLER_LISTENER = "sasl_ssl", "controller"
_SECONDS = 30.0
_ITERATIONS = 4096

_REQUEST = """\
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
req_extensions = server
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


@dataclass(frozen=True)
class Permit:
    """A right of a user, by Kafka's names."""

    user: str
    resource: str
    operation: str
    name: str = "*"

    def binding(self) -> AclBinding:
        return AclBinding(
            {"CLUSTER": ResourceType.BROKER}.get(self.resource) or ResourceType[self.resource],
            self.name,
            ResourcePatternType.LITERAL,
            f"User:{self.user}",
            "*",
            AclOperation[self.operation],
            AclPermissionType.ALLOW,
        )


def permits(side: str) -> list[Permit]:
    """Return the rights on a side: kmigrate's minimum (docs/security.md), and the live clients' work at the source.

    On the target the producers may use transactional ids, because no mirror carries over the ACLs of transactional ids.
    The live clients may touch no topic on the target: the migration must bring the ACLs that they need there.
    """
    needed = [Permit("kmigrate", g.resource, g.operation, g.name) for g in GRANTS if g.side == side]
    needed.append(Permit("producers", "TRANSACTIONAL_ID", "WRITE"))
    needed.append(Permit("kmigrate", "TRANSACTIONAL_ID", "DESCRIBE" if side == "source" else "WRITE"))
    if side != "source":
        return needed
    topics = sorted({topic for chosen in DEMO_GROUPS.values() for topic in chosen})
    return [
        *needed,
        *(Permit("producers", "TOPIC", "WRITE", topic) for topic in topics),
        *(Permit("consumers", "TOPIC", "READ", topic) for topic in topics),
        *(Permit("consumers", "GROUP", "READ", group) for group in DEMO_GROUPS),
    ]


@dataclass(frozen=True)
class SandboxSecurity:
    """The folder that holds a cluster's authority, certificates and passwords."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> SandboxSecurity:
        self = cls(folder)
        folder.mkdir(mode=0o700, parents=True)
        self._authority()
        self.issue("broker")
        # Kafka's PEM key store is a single file: the key, then the certificate.
        write_private(folder / "broker.keystore.pem", "".join(self._pem(f"broker.{kind}") for kind in ("key", "pem")))
        for user in USERS:
            write_private(folder / f"{user}.password", secrets.token_urlsafe(18))
        return self

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    def access(self, user: str, mechanism: str = "SCRAM-SHA-512") -> Access:
        return Access(user, str(self.folder / f"{user}.password"), str(self.ca_file), mechanism)

    def issue(self, name: str, days: int = 30) -> tuple[Path, Path]:
        """Issue a certificate for a name, valid for this machine's loopback address, and return certificate and key."""
        key, request, made = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        config = self._config(name)
        _openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-config", config)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.ca_file, "-CAkey", self.folder / "ca.key", "-CAcreateserial",
            "-days", str(days), "-extfile", config, "-extensions", "server", "-out", made,
        )  # fmt: skip
        key.chmod(0o600)
        return made, key

    def broker_properties(self, port: int, controller_port: int | None) -> dict[str, str]:
        """Return the properties of a broker with TLS, SASL and an authorizer: all but super users need an ACL.

        `controller_port`: the port of the controller's listener; None for a broker with a ZooKeeper.
        """
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{port}",
            "advertised.listeners": f"SASL_SSL://127.0.0.1:{port}",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            f"listener.name.{_CLIENT_LISTENER}.plain.sasl.jaas.config": self._plain_users(USERS),
            **{
                f"listener.name.{_CLIENT_LISTENER}.{mechanism}.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                )
                for mechanism in ("scram-sha-256", "scram-sha-512")
            },
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "super.users": "User:broker;User:admin",
            **(self._old_properties() if controller_port is None else self._kraft_properties(port, controller_port)),
        }

    def _old_properties(self) -> dict[str, str]:
        """Return what only brokers with a ZooKeeper get. Kafka 2.8 wants a password for the key in a PEM file."""
        key, certificate = (self._pem(f"broker.{kind}").replace("\n", r"\n") for kind in ("key", "pem"))
        return {
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": certificate,
        }

    def _kraft_properties(self, port: int, controller_port: int) -> dict[str, str]:
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL",
            "sasl.mechanism.controller.protocol": "PLAIN",
            f"listener.name.{_CONTROLLER_LISTENER}.sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{_CONTROLLER_LISTENER}.plain.sasl.jaas.config": self._plain_users(("broker",)),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "ssl.keystore.location": str(self.folder / "broker.keystore.pem"),
        }

    def admit(self, bootstrap: str, permits: Iterable[Permit]) -> None:
        """Create the SCRAM users and ACLs in the running cluster; the broker properties already name super users."""
        admin = AdminClient({"bootstrap.servers": bootstrap, **self.access("admin", "PLAIN").librdkafka()})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # a request changes a user once
            info = ScramCredentialInfo(kind, _ITERATIONS)
            credentials: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(user, info, self._password(user).encode()) for user in USERS
            ]
            for done in admin.alter_user_scram_credentials(credentials).values():
                done.result(_SECONDS)
        for made in admin.create_acls([permit.binding() for permit in permits]).values():
            made.result(_SECONDS)

    def _authority(self) -> None:
        _openssl(
            "req", "-x509", "-new", *_NEW_KEY, "-keyout", self.folder / "ca.key", "-days", "30",
            "-config", self._config("kmigrate sandbox"), "-out", self.ca_file,
        )  # fmt: skip
        (self.folder / "ca.key").chmod(0o600)

    def _config(self, name: str) -> Path:
        path = self.folder / "request.cnf"
        path.write_text(_REQUEST.format(name=name), encoding="utf-8")
        return path

    def _pem(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def _password(self, user: str) -> str:
        return self._pem(f"{user}.password")

    def _plain_users(self, users: Iterable[str]) -> str:
        known = " ".join(f'user_{user}="{self._password(user)}"' for user in users)
        return (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="broker" password="{self._password("broker")}" {known};'
        )


def router_section(source: SandboxSecurity, target: SandboxSecurity) -> str:
    """Return a secure pair's `[router]`: the target checks logins; a table has the clients' other source passwords."""
    certificate, key = target.issue("router")
    table = target.folder / "clients.toml"
    users = sorted(set(CLIENT_USERS.values()))
    entries = (f"[clients.{user}.clusters.source]\n{source.access(user).sasl_toml()}" for user in users)
    write_private(table, "".join(entries))
    return f'security_protocol = "SASL_SSL"\ncertificate = "{certificate}"\nkey = "{key}"\ncredentials = "{table}"\n'


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _openssl(*command: str | Path) -> None:
    try:
        ended = subprocess.run(["openssl", *map(str, command)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failed(
            "openssl-missing",
            "a secure sandbox makes its certificates with the openssl command, which is not installed",
            still_true="nothing was started",
            next_step="install openssl, or bring the sandbox up without --secure",
        ) from error
    if ended.returncode:
        raise Failed(
            "openssl-failed", f"openssl {command[0]}: {ended.stderr.strip()}", still_true="nothing was started"
        )
