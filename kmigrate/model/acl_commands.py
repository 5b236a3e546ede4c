"""Writes the `kafka-acls.sh` commands that give a principal its rights. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kmigrate.model.settings import ClusterSettings
from kmigrate.model.words import quoted

__all__ = ["AclCommand", "Permission", "acl_command", "acl_commands", "acl_principal"]

_FLAGS = {"TOPIC": "--topic", "GROUP": "--group", "TRANSACTIONAL_ID": "--transactional-id"}


@dataclass(frozen=True, slots=True)
class Permission:
    """An operation that an ACL allows on one name, or on all names with a prefix."""

    resource: str
    name: str
    operation: str
    prefixed: bool = False


@dataclass(frozen=True, slots=True)
class AclCommand:
    """A command for a shell, as words that belong together."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.parts)

    @property
    def lines(self) -> list[str]:
        """The command on several lines, which a shell reads as one command."""
        first, *more = self.parts
        lines = [first, *(f"    {part}" for part in more)]
        return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def acl_principal(cluster: ClusterSettings) -> str:
    """Return the principal as `kafka-acls.sh` takes a principal; `User:KMIGRATE` stands for a name to fill in."""
    known = cluster.security.principal
    return known if known.startswith("User:") else "User:KMIGRATE"


def acl_commands(cluster: ClusterSettings, permissions: Iterable[Permission]) -> list[AclCommand]:
    """Return as few commands as possible: names with the same operations share a command."""
    operations: dict[tuple[str, str, bool], dict[str, None]] = {}
    for each in permissions:
        operations.setdefault((each.resource, each.name, each.prefixed), {})[each.operation] = None
    names: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
    for (resource, name, prefixed), wanted in operations.items():
        names.setdefault((resource, tuple(wanted), prefixed), []).append(name)
    return [
        acl_command(cluster, resource, wanted, of_names, prefixed=prefixed)
        for (resource, wanted, prefixed), of_names in names.items()
    ]


def acl_command(
    cluster: ClusterSettings, resource: str, operations: Sequence[str], names: Sequence[str], *, prefixed: bool = False
) -> AclCommand:
    """Return the command that allows the operations on the names; `admin.properties` logs in as an administrator."""
    parts = [f"kafka-acls.sh --bootstrap-server {cluster.bootstrap_servers}"]
    if cluster.security.protocol != "PLAINTEXT":
        parts.append("--command-config admin.properties")
    parts.append(f"--add --allow-principal {quoted(acl_principal(cluster))}")
    parts += [f"--operation {_spelled(operation)}" for operation in operations]
    parts += ["--cluster"] if resource == "CLUSTER" else [f"{_FLAGS[resource]}={quoted(name)}" for name in names]
    return AclCommand((*parts, "--resource-pattern-type prefixed") if prefixed else tuple(parts))


def _spelled(operation: str) -> str:
    """Return an operation in the spelling of the tool: DESCRIBE_CONFIGS becomes DescribeConfigs."""
    return "".join(map(str.capitalize, operation.split("_")))
