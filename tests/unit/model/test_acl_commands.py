"""The commands for `kafka-acls.sh` are whole, few and safe for a shell."""

from __future__ import annotations

import shlex

from kmigrate.model.acl_commands import Permission, acl_command, acl_commands
from kmigrate.model.security import Bearer, Login, Security, Tls
from kmigrate.model.settings import ClusterSettings

SECURE = ClusterSettings("old", (("a", 1), ("b", 2)), security=Security(Tls(), Login("PLAIN", "the mover")))


def test_names_with_the_same_operations_share_a_command() -> None:
    wanted = [Permission("TOPIC", name, each) for each in ("READ", "DESCRIBE_CONFIGS") for name in ("orders", "bills")]
    (command,) = acl_commands(SECURE, [*wanted, *wanted])
    assert str(command) == (
        "kafka-acls.sh --bootstrap-server a:1,b:2 --command-config admin.properties --add --allow-principal "
        "'User:the mover' --operation Read --operation DescribeConfigs --topic=orders --topic=bills"
    )


def test_each_kind_of_resource_has_a_command_of_its_own() -> None:
    wanted = [
        Permission("GROUP", "*", "READ"),
        Permission("CLUSTER", "kafka-cluster", "ALTER_CONFIGS"),
        Permission("TRANSACTIONAL_ID", "kmigrate-holes-", "WRITE", prefixed=True),
    ]
    group, cluster, transactional = (str(each).split("mover' ")[1] for each in acl_commands(SECURE, wanted))
    assert group == "--operation Read --group='*'"
    assert cluster == "--operation AlterConfigs --cluster"
    assert transactional == "--operation Write --transactional-id=kmigrate-holes- --resource-pattern-type prefixed"


def test_a_shell_reads_hostile_names_and_several_lines_as_one_command() -> None:
    names = ("-orders", "it's $(id)")
    command = acl_command(SECURE, "TOPIC", ["READ"], names)
    words = shlex.split(str(command))
    assert [word for word in words if word.startswith("--topic")] == [f"--topic={name}" for name in names]
    assert shlex.split("\n".join(command.lines).replace("\\\n", "")) == words


def test_a_principal_that_the_configuration_does_not_tell_is_left_to_fill_in() -> None:
    plain = ClusterSettings("new", (("a", 1),))
    assert "User:ANONYMOUS" in str(acl_command(plain, "CLUSTER", ["ALTER"], ()))
    assert "admin.properties" not in str(acl_command(plain, "CLUSTER", ["ALTER"], ()))
    token = ClusterSettings("new", (("a", 1),), security=Security(Tls(), Bearer("token")))
    assert "User:KMIGRATE" in str(acl_command(token, "CLUSTER", ["ALTER"], ()))
