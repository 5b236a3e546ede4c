"""The live clients and their logins as frozen values, which travel to the clients' processes as JSON."""

from __future__ import annotations

import json
import random
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kmigrate.errors import UsageError

__all__ = [
    "DEMO_GROUPS",
    "Access",
    "ClientSpec",
    "ConsumerSpec",
    "Family",
    "Launch",
    "ProducerSpec",
    "TransactionalSpec",
    "demo_clients",
    "family_clients",
    "seeded_clients",
    "spec_from_json",
]

Family = Literal["librdkafka", "aiokafka", "java", "kafka-python", "kafka-python-2", "franz-go"]
Acks = Literal["all", "1", "0"]


@dataclass(frozen=True)
class ProducerSpec:
    """A producer of numbered values at a steady rate, to the partitions of a topic in turn."""

    name: str
    family: Family
    topic: str
    rate: float  # records/s
    acks: Acks = "all"
    idempotent: bool = True
    in_a_row: int = 1
    """Number of records to a partition before the next partition's turn; default partitioners do the same (KIP-480)."""
    settings: Mapping[str, Any] = field(default_factory=dict)  # by the names of the family's library
    role: Literal["producer"] = "producer"


@dataclass(frozen=True)
class TransactionalSpec:
    """A writer of transactions with a few records each; by default every fifth transaction is aborted."""

    name: str
    topic: str
    rate: float
    records: int = 10
    abort_every: int = 5
    in_a_row: int = 1
    family: Literal["librdkafka", "java", "franz-go"] = "librdkafka"
    settings: Mapping[str, Any] = field(default_factory=dict)
    role: Literal["transactional"] = "transactional"


@dataclass(frozen=True)
class ConsumerSpec:
    """A group member with read_committed and two commits a second; the classic protocol unless `settings` differ."""

    name: str
    family: Family
    group: str
    topics: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    role: Literal["consumer"] = "consumer"


DEMO_GROUPS: Mapping[str, tuple[str, ...]] = {
    "billing": ("orders", "payments"),
    "analytics": ("orders", "payments", "audit"),
}

ClientSpec = ProducerSpec | TransactionalSpec | ConsumerSpec
_ROLES: Mapping[str, type[ClientSpec]] = {kind.role: kind for kind in (ProducerSpec, TransactionalSpec, ConsumerSpec)}


@dataclass(frozen=True)
class Access:
    """The login of a user to a cluster, with everything that a client of any family needs."""

    username: str
    password_file: str
    ca_file: str
    mechanism: str = "SCRAM-SHA-512"

    def librdkafka(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca_file,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": Path(self.password_file).read_text(encoding="utf-8"),
        }

    def aiokafka(self) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.ca_file),
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": Path(self.password_file).read_text(encoding="utf-8"),
        }

    def toml(self) -> str:
        """Return the login as lines of `kmigrate.toml`. The password stays in the password file."""
        return f'"security.protocol" = "SASL_SSL"\n"ssl.ca.location" = "{self.ca_file}"\n{self.sasl_toml()}'

    def sasl_toml(self) -> str:
        """Return only the SASL lines, in the form of the router's table of credentials."""
        return (
            f'"sasl.mechanism" = "{self.mechanism}"\n'
            f'"sasl.username" = "{self.username}"\n'
            f'"sasl.password" = {{ file = "{self.password_file}" }}\n'
        )


@dataclass(frozen=True)
class Launch:
    """The start of a client as a process; the client ends when process `tied_to` (pid, start time) ends."""

    spec: ClientSpec
    bootstrap: str
    run: int
    start_seq: int
    history: str
    tied_to: tuple[int, str] | None = None
    access: Access | None = None
    """The client's login, for a cluster that is not open to all."""

    @property
    def librdkafka(self) -> dict[str, str]:
        """The bootstrap servers and the login, by librdkafka's names."""
        return {"bootstrap.servers": self.bootstrap, **(self.access.librdkafka() if self.access else {})}

    @property
    def aiokafka(self) -> dict[str, Any]:
        """The bootstrap servers and the login, as aiokafka's arguments."""
        return {"bootstrap_servers": self.bootstrap, **(self.access.aiokafka() if self.access else {})}

    def to_json(self) -> str:
        access = asdict(self.access) if self.access else None
        return json.dumps({**self.__dict__, "spec": asdict(self.spec), "access": access})

    @staticmethod
    def from_json(text: str) -> Launch:
        fields = json.loads(text)
        tied_to = fields["tied_to"]
        access = Access(**fields["access"]) if fields["access"] else None
        launch = Launch(**{**fields, "spec": spec_from_json(fields["spec"]), "access": access})
        return replace(launch, tied_to=(int(tied_to[0]), str(tied_to[1])) if tied_to else None)


def spec_from_json(fields: Mapping[str, Any]) -> ClientSpec:
    role = _ROLES.get(fields.get("role", ""))
    if role is None:
        raise UsageError("traffic-spec", f"no client has the role {fields.get('role')!r}; known: {sorted(_ROLES)}")
    if role is ConsumerSpec:
        return ConsumerSpec(**{**fields, "topics": tuple(fields["topics"])})
    return role(**fields)


def demo_clients(rate: float = 1500.0) -> tuple[ClientSpec, ...]:
    """Return the demo's live clients: producers of two families, two mixed groups and a transactional writer."""
    audit_rate = min(20.0, rate / 10)
    share = (rate - audit_rate) / 4
    families: tuple[Family, ...] = ("librdkafka", "librdkafka", "aiokafka")
    return (
        ProducerSpec("shop-1", "librdkafka", "orders", share),
        ProducerSpec("shop-2", "librdkafka", "orders", share),
        ProducerSpec("shop-3", "aiokafka", "orders", share),
        ProducerSpec("shop-4", "aiokafka", "orders", share),
        ProducerSpec("auditor", "librdkafka", "audit", audit_rate),
        TransactionalSpec("till", "payments", rate=200.0),
        *(
            ConsumerSpec(f"{group}-{number}", family, group, topics)
            for group, topics in DEMO_GROUPS.items()
            for number, family in enumerate(families, start=1)
        ),
    )


def family_clients(rate: float = 1500.0) -> tuple[ClientSpec, ...]:
    """Return the demo's clients in five families: a producer and a group member each, and Java transactions."""
    families: tuple[Family, ...] = ("librdkafka", "aiokafka", "java", "kafka-python", "franz-go")
    audit_rate = min(20.0, rate / 10)
    groups: Mapping[str, tuple[Family, ...]] = {
        "billing": ("java", "kafka-python"),
        "analytics": ("librdkafka", "franz-go", "aiokafka"),
    }
    return (
        *(ProducerSpec(f"shop-{family}", family, "orders", (rate - audit_rate) / 5) for family in families),
        ProducerSpec("auditor", "franz-go", "audit", audit_rate),
        TransactionalSpec("till", "payments", rate=200.0, family="java"),
        *(
            ConsumerSpec(f"{group}-{family}", family, group, DEMO_GROUPS[group])
            for group, members in groups.items()
            for family in members
        ),
    )


def seeded_clients(seed: int, rate: float, *, families: bool = False) -> tuple[ClientSpec, ...]:
    """Return the demo's clients with uneven shares of the same total rate and another transaction size."""
    chance = random.Random(seed)
    specs = list(family_clients(rate) if families else demo_clients(rate))
    orders = {n: s for n, s in enumerate(specs) if isinstance(s, ProducerSpec) and s.topic == "orders"}
    weights = [chance.uniform(0.5, 1.5) for _ in orders]
    whole = sum(spec.rate for spec in orders.values())
    for (n, spec), weight in zip(orders.items(), weights, strict=True):
        specs[n] = replace(spec, rate=whole * weight / sum(weights))
    return tuple(
        replace(spec, records=chance.randint(5, 20)) if isinstance(spec, TransactionalSpec) else spec for spec in specs
    )
