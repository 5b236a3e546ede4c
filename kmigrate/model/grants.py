"""Lists the least rights that kmigrate's principals need: one list for documents, `doctor`, `plan`, sandbox and tests.

`docs/security.md` shows the list, and `sandbox up --secure` grants exactly these rights. A test asks the brokers' own
authorizer two things: whether kmigrate wanted any other right, and whether any listed right was never used. "Topic"
stands for the mirrored topics. The rights can be granted by name, by prefix or, as in the sandbox, for all topics.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.model.rehearsals import SHADOW_PREFIX

__all__ = ["CLUSTER_NAME", "GRANTS", "OPTIONAL_GRANTS", "REHEARSAL_GRANTS", "Grant", "GrantUse", "grants_of"]

CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of type CLUSTER."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An operation on a kind of resource at the source or the target, in Kafka's spelling."""

    side: str
    resource: str
    operation: str
    why: str
    name: str = "*"
    without: str = ""
    """Effect of the missing right on a migration that can do without the right; '' where no migration can."""
    prefixed: bool = False
    """True if the right is for all names that begin with `name`."""


GRANTS: tuple[Grant, ...] = (
    Grant("source", "TOPIC", "READ", "fetch records; DescribeProducers"),
    Grant("source", "TOPIC", "DESCRIBE_CONFIGS", "give the target topic the source's configs"),
    Grant("source", "GROUP", "DESCRIBE", "read committed offsets and members of mirrored groups"),
    Grant(
        "source",
        "GROUP",
        "READ",
        "keep members out of promoted groups (else they are only named); roll groups back; notes of copies back",
    ),
    Grant("source", "CLUSTER", "DESCRIBE_CONFIGS", "compare the brokers' limits with the target's", CLUSTER_NAME),
    Grant("source", "CLUSTER", "DESCRIBE", "read the access rules of mirrored topics and groups", CLUSTER_NAME),
    Grant("target", "TOPIC", "CREATE", "make mirrored topics and the state log"),
    Grant("target", "TOPIC", "READ", "read the state log; DescribeProducers; compare"),
    Grant("target", "TOPIC", "WRITE", "write records, and the state log"),
    Grant("target", "TOPIC", "DELETE", "DeleteRecords: give a target topic the source's log start"),
    Grant("target", "TOPIC", "DESCRIBE_CONFIGS", "check the target topic's configs"),
    Grant("target", "TOPIC", "ALTER_CONFIGS", "relax limits, restore them at promote; configs of the state log"),
    Grant("target", "GROUP", "READ", "give a promoted group its offsets"),
    Grant("target", "CLUSTER", "DESCRIBE", "compare ACLs; watch the disks (DescribeLogDirs)", CLUSTER_NAME),
    Grant("target", "CLUSTER", "ALTER", "carry access rules over; control markers (W5)", CLUSTER_NAME),
    Grant("target", "CLUSTER", "DESCRIBE_CONFIGS", "how long producers are remembered; defaults", CLUSTER_NAME),
    Grant("target", "CLUSTER", "ALTER_CONFIGS", "make them remember long enough, and put it back", CLUSTER_NAME),
)

_SILENT_ROUTER = "a promote is refused while a router does not answer"

OPTIONAL_GRANTS: tuple[Grant, ...] = (
    Grant(
        "source",
        "TOPIC",
        "ALTER_CONFIGS",
        "refuse late writers after the flip; hold the fence in place of a silent router",
        without=f"the source topic stays open after the flip, and {_SILENT_ROUTER}",
    ),
    Grant(
        "source",
        "TOPIC",
        "WRITE",
        "copy promoted topics back; see that each leader follows the limit that refuses writers",
        without="no promote can be taken back, whether the source refuses late writers is not proven, and "
        f"{_SILENT_ROUTER}",
    ),
    Grant(
        "source",
        "CLUSTER",
        "ALTER",
        "keep other writers out of a source topic while a promote can be taken back",
        CLUSTER_NAME,
        without="a record that another writer adds to the source ends the way back",
    ),
    Grant(
        "source",
        "TRANSACTIONAL_ID",
        "DESCRIBE",
        "see at a promote that no transaction is open, and which ids are gone",
        without="kmigrate relies on the routers' reports and on the partitions",
    ),
    Grant(
        "source",
        "TRANSACTIONAL_ID",
        "WRITE",
        "raise the epochs of the ids under which a silent router writes",
        without=_SILENT_ROUTER,
    ),
    Grant(
        "target",
        "TOPIC",
        "ALTER",
        "add the partitions that the source topic gets",
        without="a partition that the source adds is not copied, and `status` says so",
    ),
    Grant(
        "target",
        "TRANSACTIONAL_ID",
        "WRITE",
        "keep idle ids alive (controller); add a partition to a transaction (router)",
        without="an id that is idle for seven days is lost, and a batch that came to another broker waits",
    ),
)
"""Rights that single features use; a migration without such a feature can do without the right."""


REHEARSAL_GRANTS: tuple[Grant, ...] = tuple(
    Grant(side, resource, operation, why, SHADOW_PREFIX, without="no promote can be rehearsed", prefixed=True)
    for side in ("source", "target")
    for resource, operation, why in (
        ("TOPIC", "CREATE", "make shadow topics"),
        ("TOPIC", "READ", "read shadow topics, as the rehearsal's group and to compare"),
        ("TOPIC", "WRITE", "write the copy of the real traffic"),
        ("TOPIC", "DELETE", "remove shadow topics"),
        ("TOPIC", "DESCRIBE_CONFIGS", "read the configs of shadow topics"),
        ("TOPIC", "ALTER_CONFIGS", "give shadow topics the configs of the real topics"),
        ("GROUP", "READ", "read shadow topics as a group"),
        ("GROUP", "DELETE", "remove the rehearsal's group"),
    )
)
"""Rights that a rehearsal needs beside the other rights; READ and DELETE imply DESCRIBE."""


@dataclass(frozen=True, slots=True)
class GrantUse:
    """The settings of `[mirror]` on which the needed rights depend."""

    carries_acls: bool = True
    fills_by_markers: bool = True
    raises_expiration: bool = True


def grants_of(side: str, use: GrantUse) -> tuple[Grant, ...]:
    """Return the rights that kmigrate needs at a side with these settings, and then the optional rights there."""
    unused = set()
    if not use.carries_acls:
        unused |= {("source", "CLUSTER", "DESCRIBE"), ("target", "CLUSTER", "ALTER")}
    if not use.raises_expiration:
        unused.add(("target", "CLUSTER", "ALTER_CONFIGS"))
    needed = [grant for grant in GRANTS if (grant.side, grant.resource, grant.operation) not in unused]
    if not use.carries_acls and use.fills_by_markers:
        needed.append(Grant("target", "CLUSTER", "CLUSTER_ACTION", "control markers (W5)", CLUSTER_NAME))
    if not use.fills_by_markers:
        why = "fill offsets without records by transactions"
        needed.append(Grant("target", "TRANSACTIONAL_ID", "WRITE", why, "kmigrate-holes-", prefixed=True))
    return tuple(grant for grant in (*needed, *OPTIONAL_GRANTS) if grant.side == side)
