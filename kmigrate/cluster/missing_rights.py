"""Names the missing right of a refused request: principal, operation and resource."""

from __future__ import annotations

from kmigrate.errors import BrokerRefused
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code

__all__ = ["DENIED", "Right", "denied", "is_denied"]

DENIED = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Error codes of a broker whose authorizer refused a request."""

Right = tuple[str, str]
"""An operation and a resource, by Kafka's names: ("READ", "topic orders")."""


def is_denied(error: BaseException | None) -> bool:
    """Return whether an authorizer caused the error."""
    return isinstance(error, BrokerRefused) and error.code in DENIED


def denied(settings: ClusterSettings, code: int, right: Right, *, still_true: str = "") -> BrokerRefused:
    """Return the error of a request that the authorizer refused."""
    operation, resource = right
    who = settings.security.principal
    return BrokerRefused(
        "access-denied",
        f"cluster {settings.name} refused {operation} on {resource} to {who}",
        code=code,
        still_true=still_true or "nothing was changed by this request",
        next_step=f"add an ACL on {settings.name}: allow {who} {operation} on {resource} "
        "(docs/security.md lists all rights that kmigrate needs)",
    )
