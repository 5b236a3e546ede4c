"""The rights that kmigrate needs: a table for people, and commands for `kafka-acls.sh`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text, below
from kmigrate.cli.views.tables import table
from kmigrate.model.acl_commands import AclCommand, acl_commands, acl_principal
from kmigrate.model.grants import Grant, grants_of
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.base.rights import Wanted, needed_permissions

__all__ = ["ClusterAcls", "acls_answer"]

_KINDS = {"TOPIC": "Topic", "GROUP": "Group", "CLUSTER": "Cluster", "TRANSACTIONAL_ID": "TransactionalId"}


@dataclass(frozen=True, slots=True)
class ClusterAcls:
    """The rights of kmigrate's principal on one cluster; no names stand for all topics, or all groups."""

    cluster: ClusterSettings
    wanted: Wanted
    beside: tuple[Grant, ...] = ()
    """Rights of a single feature, which are shown alone; empty for the rights of a migration."""

    @property
    def grants(self) -> tuple[Grant, ...]:
        return self.beside or grants_of(self.wanted.side, self.wanted.use)

    def commands(self, *, optional: bool) -> list[AclCommand]:
        """Return the commands for the needed rights, or for the optional rights."""
        wanted = [grant for grant in self.grants if bool(grant.without) is optional]
        return acl_commands(self.cluster, needed_permissions(wanted, self.wanted.topics, self.wanted.groups))


def acls_answer(clusters: Sequence[ClusterAcls]) -> Answer:
    """Return the rights at all clusters as JSON, and as a table with commands."""
    json = {
        "rights": [_right(each, grant) for each in clusters for grant in each.grants],
        "commands": [
            {"cluster": each.cluster.name, "optional": optional, "command": str(command)}
            for each in clusters
            for optional in (False, True)
            for command in each.commands(optional=optional)
        ],
    }
    return Answer(json, Group(*(part for each in clusters for part in _view(each))))


def _right(acls: ClusterAcls, grant: Grant) -> dict[str, Any]:
    names = {"TOPIC": acls.wanted.topics, "GROUP": acls.wanted.groups}.get(grant.resource) or (grant.name,)
    return {
        "cluster": acls.cluster.name,
        "side": acls.wanted.side,
        "principal": acl_principal(acls.cluster),
        "resource": grant.resource,
        "names": list(names),
        "prefixed": grant.prefixed,
        "operation": grant.operation,
        "why": grant.why,
        "without": grant.without,
    }


def _view(acls: ClusterAcls) -> list[RenderableType]:
    title = f"{acls.cluster.name}, as {acls.wanted.side}: rights of {acl_principal(acls.cluster)}"
    made = table("resource", "operation", "for", "without the right", title=title)
    for grant in acls.grants:
        made.add_row(_KINDS[grant.resource], grant.operation, grant.why, grant.without or "(needed)")
    needed, optional = (acls.commands(optional=word) for word in (False, True))
    return [
        made,
        *_commands(f"# needed on {acls.cluster.name}", needed),
        *_commands(f"# optional on {acls.cluster.name}", optional),
    ]


def _commands(head: str, commands: Sequence[AclCommand]) -> list[RenderableType]:
    if not commands:
        return []
    return [Text(head, style="dim"), below([line for command in commands for line in command.lines]), Text("")]
