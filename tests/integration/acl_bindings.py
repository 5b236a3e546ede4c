"""ACLs that tests create and delete, by librdkafka's admin client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AclBinding, AclBindingFilter, AdminClient

from kmigrate.sandbox.kafka import KafkaCluster

__all__ = ["exactly", "in_force"]

_SECONDS = 30


def exactly(binding: AclBinding) -> AclBindingFilter:
    """Return the filter that matches this ACL alone."""
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


@contextmanager
def in_force(cluster: KafkaCluster, *bindings: AclBinding) -> Iterator[None]:
    """Create ACLs for the time of a block, and delete them after the block."""
    admin = AdminClient(dict(cluster.client()))
    for made in admin.create_acls(list(bindings)).values():
        made.result(_SECONDS)
    try:
        yield
    finally:
        for gone in admin.delete_acls([exactly(each) for each in bindings]).values():
            gone.result(_SECONDS)
