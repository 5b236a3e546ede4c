"""The settings of a link: defaults of the configuration, and the values of `--set`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kmigrate.config.link_settings import KEYS, altered, contradictions, new_link_settings
from kmigrate.config.load import load
from kmigrate.errors import UsageError
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings

FILE = """
[mirror]
hole_limit = 7
config_exclude = ["flush.*", "a{1,2}"]
use_defaults_from = "target"
lease_s = 4.0
[promote]
fence_timeout_s = 3.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kmigrate.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_each_setting_of_a_link_is_a_key_of_the_configuration() -> None:
    assert set(KEYS) == {each.name for each in dataclasses.fields(LinkSettings)}
    assert set(KEYS.values()) == {"mirror", "promote"}


def test_a_new_link_gets_what_the_configuration_says_and_else_kmigrates_defaults(file: Path) -> None:
    assert new_link_settings(load(None, {})) == LinkSettings()
    assert new_link_settings(load(file, {"KMIGRATE_PROMOTE__LAG_THRESHOLD": "5"})) == LinkSettings(
        hole_limit=7,
        config_exclude=("flush.*", "a{1,2}"),
        use_defaults_from=DefaultsFrom.TARGET,
        fence_timeout_s=3.0,
        lag_threshold=5,
    )


def test_a_value_of_a_call_replaces_one_setting_and_each_value_of_a_list_is_given_by_itself() -> None:
    before = LinkSettings(hole_limit=7, acl_exclude=("User:x",), sync_acls=False)
    after = altered(
        before,
        [
            "config_exclude=a{1,2}",
            "config_exclude=b=c",
            "acl_exclude=",
            "use_defaults_from=target",
            "fence_timeout_s=30",
        ],
    )
    assert after == LinkSettings(
        hole_limit=7,
        sync_acls=False,
        config_exclude=("a{1,2}", "b=c"),
        use_defaults_from=DefaultsFrom.TARGET,
        fence_timeout_s=30.0,
    )
    assert altered(after, ["sync_acls=true"]).sync_acls
    assert altered(before, []) == before


@pytest.mark.parametrize(
    ("given", "ref", "says"),
    [
        (["hole_limt=5"], "unknown-link-setting", "no setting hole_limt: did you mean 'hole_limit'?"),
        (["lease_s=5"], "unknown-link-setting", "no setting lease_s"),
        (["hole_limit"], "unknown-link-setting", "no KEY=VALUE"),
        (["hole_limit=many"], "bad-config-value", "--set: hole_limit: found 'many'"),
        (["hole_limit=0"], "bad-config-value", "--set: hole_limit: found '0'"),
        (["hole_limit="], "bad-config-value", "--set: hole_limit: found ''"),
        (["fence_timeout_s=nan"], "bad-config-value", "--set: fence_timeout_s: found 'nan'"),
        (["hole_limit=5", "hole_limit=6"], "bad-config-value", "--set: hole_limit: given twice"),
        (["sync_acls=perhaps"], "bad-config-value", "--set: sync_acls: found 'perhaps'"),
        (["use_defaults_from=both"], "bad-config-value", "--set: use_defaults_from: found 'both'"),
        (["config_exclude=("], "bad-config-value", "'(' is no regular expression"),
        (["acl_exclude=(a+)+"], "bad-config-value", "'(a+)+' may take for ever"),
    ],
)
def test_a_value_that_no_setting_may_have_is_refused(given: list[str], ref: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        altered(LinkSettings(), given)
    assert caught.value.ref == ref
    assert says in caught.value.what
    assert caught.value.next_step.startswith("expected: ")


def test_only_a_key_that_the_configuration_names_contradicts_a_link(file: Path) -> None:
    link = LinkSettings(hole_limit=9, fence_timeout_s=3.0, lag_threshold=1)
    found = contradictions(load(file, {}), link)
    assert set(found) == {"hole_limit", "config_exclude", "use_defaults_from"}
    assert found["hole_limit"] == "[mirror] hole_limit is 7, and the link has 9"
    assert found["config_exclude"] == "[mirror] config_exclude is flush.*, a{1,2}, and the link has none"
    assert contradictions(load(None, {}), link) == {}
    assert contradictions(load(file, {}), new_link_settings(load(file, {}))) == {}
