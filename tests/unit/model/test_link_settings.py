"""The settings of a link in words."""

from __future__ import annotations

from kmigrate.model.link_settings import DefaultsFrom, LinkSettings


def test_a_setting_reads_as_a_person_writes_it() -> None:
    settings = LinkSettings(hole_limit=2_000_000_000, acl_exclude=("User:a", "User:b"), straggler_window_s=0.5)
    shown = {key: settings.text(key) for key in ("hole_limit", "acl_exclude", "config_exclude", "sync_acls")}
    assert shown == {
        "hole_limit": "2000000000",
        "acl_exclude": "User:a, User:b",
        "config_exclude": "none",
        "sync_acls": "true",
    }
    assert (settings.text("straggler_window_s"), settings.text("pending_timeout_s")) == ("0.5", "120")
    assert LinkSettings(pending_timeout_s=86_400).text("pending_timeout_s") == "86400"


def test_each_change_is_named_with_both_values() -> None:
    assert LinkSettings().changes_to(LinkSettings()) == []
    after = LinkSettings(lag_threshold=5, use_defaults_from=DefaultsFrom.TARGET)
    assert LinkSettings().changes_to(after) == ["use_defaults_from: source → target", "lag_threshold: 1000 → 5"]
