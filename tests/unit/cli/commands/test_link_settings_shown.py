"""The settings of a link in the documents of `link list` and `link show`."""

from __future__ import annotations

import json
from dataclasses import replace

from kmigrate.cli.commands.link import _as_json
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings
from kmigrate.model.records import ClusterRef, LinkRecord
from tests.json_output import check_document

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)


def test_all_settings_of_a_link_are_in_its_document() -> None:
    settings = LinkSettings(hole_limit=7, acl_exclude=("User:a",), use_defaults_from=DefaultsFrom.TARGET)
    shown = json.loads(json.dumps(_as_json(replace(LINK, settings=settings))))
    assert shown["settings"]["hole_limit"] == 7
    assert (shown["settings"]["acl_exclude"], shown["settings"]["use_defaults_from"]) == (["User:a"], "target")
    check_document("link list", {"links": [shown]})
    check_document("link show", {**shown, "topics": {}, "groups": {}})
