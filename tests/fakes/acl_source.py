"""A source with an authorizer: ACLs that reach its brokers in turn, and rights of kmigrate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster import acls
from kmigrate.errors import BrokerRefused
from kmigrate.model.acls import Acl
from kmigrate.model.rights import Operations, Rights
from kmigrate.workflow.promote import denying

__all__ = ["OURS", "THEIRS", "AclSource", "asked", "may_write"]


def may_write(principal: str, topic: str = "t", **more: Any) -> Acl:
    return Acl("topic", topic, principal, "*", "WRITE", **more)


OURS, THEIRS = may_write("User:kmigrate"), may_write("User:ann")


@dataclass
class AclSource:
    """A source cluster and its admin client."""

    rules: set[Acl] = field(default_factory=lambda: {OURS, THEIRS})
    authorizer: bool = True
    principal: str = "User:kmigrate"
    may_alter: bool = True
    may_write: bool = True
    answers_late: int = 0
    """Number of answers of broker 2 that still have the ACLs from before the last change."""
    on_act: Callable[[str], None] = lambda _: None
    """Gets the name of each change before the change is made, and may raise, as a crash would."""
    on_done: Callable[[str], None] = lambda _: None
    """The same after the change."""
    acts: list[str] = field(default_factory=list)
    _before: frozenset[Acl] = frozenset()
    _late: int = 0

    @property
    def settings(self) -> Any:
        return SimpleNamespace(name="old", security=SimpleNamespace(principal=self.principal))

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(brokers={1: ("h", 1), 2: ("h", 2)})

    @property
    def denials(self) -> set[Acl]:
        return {rule for rule in self.rules if not rule.allow}

    async def create_acls(self, rules: Any) -> None:
        self._change("create", set(rules), self.rules | set(rules))

    async def delete_acls(self, rules: Any) -> None:
        self._change("delete", set(rules), self.rules - set(rules))

    def _change(self, name: str, changed: set[Acl], after: set[Acl]) -> None:
        if not changed:
            return
        if not self.may_alter:
            raise BrokerRefused("access-denied", "cluster old refused ALTER on the cluster to User:kmigrate", code=31)
        self.acts.append(name)
        self.on_act(name)
        self._before, self._late = frozenset(self.rules), self.answers_late
        self.rules = after
        self.on_done(name)

    async def read_acls(self, node: int | None = None) -> frozenset[Acl] | None:
        if not self.authorizer:
            return None
        if node == 2 and self._late:
            self._late -= 1
            return self._before
        return frozenset(self.rules)

    def rights(self, topics: Any) -> Rights:
        on_cluster = {"DESCRIBE", "ALTER"} if self.may_alter else {"DESCRIBE"}
        denied = any(rule.principal == self.principal for rule in self.denials)
        on_topic = {"READ", "WRITE"} if self.may_write and not denied else {"READ"}
        return Rights(Operations.exactly(on_cluster), dict.fromkeys(topics, Operations.exactly(on_topic)))


@contextmanager
def asked() -> Iterator[None]:
    """Let `denying` ask such sources."""

    async def read_acls(client: AclSource, node: int | None = None) -> frozenset[Acl] | None:
        return await client.read_acls(node)

    async def read_rights(client: AclSource, topics: Any, _: Any) -> Rights:
        return client.rights(topics)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acls, "read_acls", read_acls)
        patch.setattr(denying, "read_acls", read_acls)
        patch.setattr(denying, "read_rights", read_rights)
        yield
