"""The verbs of a migration: each looks first (guards as findings) and proposes one intent per topic, group or link.

A verb asks clusters only what its guards need. A repeated verb whose effect stands changes nothing and succeeds.

    links            create, delete, check, alter and limit links
    access           findings about ACLs
    mirror           mirror topics, the engine of a copy, copies with fewer replicas
    way_back         what the way back of a promote needs, and its end
    rollback         roll topics back, `rollback --cancel`
    target_lost      what the source holds once the target is gone
    promote          promote topics, `promote --cancel`, findings about direct writers
    schedule         promotes at a later time, and their release
    creatable        whether the target takes the topics
    loops            topics that would be copied in a circle
    matching         names by regular expression
    pause_resume     pause, resume, accepted losses
    groups           mirror and promote groups
    group_rollback   roll groups back
    position_guards  positions that a hand-over would move
    routers          silent routers
    late             late writes, `--seal`, `--no-seal` and `--on-late`
    waiting          the wait for what a verb asked for
    proposal         the shape of every verb
    forget           topics and groups taken out of their link
    finish           `link finish`
"""

from __future__ import annotations

from kmigrate.workflow.base.producer_expiration import memory_findings
from kmigrate.workflow.verbs.access import access_findings, state_findings
from kmigrate.workflow.verbs.creatable import ConfigsOf
from kmigrate.workflow.verbs.finish import Left, SayLeft, finish_link, left_behind, undo_finish, wait_left
from kmigrate.workflow.verbs.forget import forget_groups, forget_topics
from kmigrate.workflow.verbs.group_rollback import roll_back_groups
from kmigrate.workflow.verbs.groups import coupled_groups, mirror_groups, promote_groups, unmirrored_readers
from kmigrate.workflow.verbs.late import Treatment, treat_promoted
from kmigrate.workflow.verbs.links import (
    alter_link,
    check_link,
    check_link_name,
    create_link,
    delete_link,
    resolve_link,
    stored_link,
    throttle_link,
)
from kmigrate.workflow.verbs.matching import forget_patterns, mirror_matching_groups, mirror_matching_topics
from kmigrate.workflow.verbs.mirror import check_offsets_mode, mirror_topics, set_engine
from kmigrate.workflow.verbs.pause_resume import check_loss, pause_topics, resume_topics
from kmigrate.workflow.verbs.promote import cancel_promote, promote_topics
from kmigrate.workflow.verbs.proposal import Proposal
from kmigrate.workflow.verbs.rollback import cancel_rollback, roll_back_topics
from kmigrate.workflow.verbs.routers import forget_router, router_to_replace
from kmigrate.workflow.verbs.schedule import release_promote, schedule_promote
from kmigrate.workflow.verbs.waiting import wait_groups, wait_groups_rolled_back, wait_rolled_back, wait_topics

__all__ = [
    "ConfigsOf",
    "Left",
    "Proposal",
    "SayLeft",
    "Treatment",
    "access_findings",
    "alter_link",
    "cancel_promote",
    "cancel_rollback",
    "check_link",
    "check_link_name",
    "check_loss",
    "check_offsets_mode",
    "coupled_groups",
    "create_link",
    "delete_link",
    "finish_link",
    "forget_groups",
    "forget_patterns",
    "forget_router",
    "forget_topics",
    "left_behind",
    "memory_findings",
    "mirror_groups",
    "mirror_matching_groups",
    "mirror_matching_topics",
    "mirror_topics",
    "pause_topics",
    "promote_groups",
    "promote_topics",
    "release_promote",
    "resolve_link",
    "resume_topics",
    "roll_back_groups",
    "roll_back_topics",
    "router_to_replace",
    "schedule_promote",
    "set_engine",
    "state_findings",
    "stored_link",
    "throttle_link",
    "treat_promoted",
    "undo_finish",
    "unmirrored_readers",
    "wait_groups",
    "wait_groups_rolled_back",
    "wait_left",
    "wait_rolled_back",
    "wait_topics",
]
