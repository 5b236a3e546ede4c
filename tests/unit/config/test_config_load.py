"""The configuration: accepted values, and the message for each mistake."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kmigrate.config.load import SECTIONS, load
from kmigrate.config.settings import Settings
from kmigrate.errors import UsageError

Write = Callable[[str], Path]

TWO = """
[clusters.source]
"bootstrap.servers" = "a:9092, b:9093"
[clusters.target]
"bootstrap.servers" = "[::1]:9092"
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "kmigrate.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def _error(path: Path | None, env: Mapping[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(path, env or {})
    return caught.value


def test_clusters_and_sections_become_frozen_values(write: Write) -> None:
    settings = load(write(TWO + "[router]\nport = 9094\n[promote]\nlag_threshold = 7\nfence_timeout_s = 3"), {})
    assert settings.cluster("source").bootstrap == (("a", 9092), ("b", 9093))
    assert settings.cluster("target").bootstrap == (("::1", 9092),)
    assert (settings.router.port, settings.promote.lag_threshold) == (9094, 7)
    assert settings.promote.fence_timeout_s == pytest.approx(3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.router.port = 1  # type: ignore[misc]


def test_names_with_dots_need_no_quotes(write: Write) -> None:
    settings = load(write('[clusters.c]\nbootstrap.servers = "h:1"\nclient.id = "me"\nrequest.timeout.ms = 500'), {})
    cluster = settings.cluster("c")
    assert (cluster.bootstrap_servers, cluster.client_id) == ("h:1", "me")
    assert cluster.request_timeout_s == pytest.approx(0.5)


def test_flags_override_the_environment_and_the_environment_overrides_the_file(write: Write) -> None:
    path = write(TWO + '[router]\nname = "file"\nport = 1\nhost = "h"')
    env = {
        "KMIGRATE_ROUTER__NAME": "env",
        "KMIGRATE_ROUTER__PORT": "2",
        "KMIGRATE_CLUSTERS__SOURCE__BOOTSTRAP_SERVERS": "env:1",
        "KMIGRATE_CACHE": "belongs to others",
        "KMIGRATE_VAR_STAGE__NAME": "belongs to a playbook",
    }
    settings = load(path, env, {"router.port": "3"})
    assert (settings.router.host, settings.router.name, settings.router.port) == ("h", "env", 3)
    assert settings.cluster("source").bootstrap_servers == "env:1"
    assert settings.origins["[router] host"] == str(path)
    assert settings.origins["[router] name"] == "environment KMIGRATE_ROUTER__NAME"
    assert settings.origins["[router] port"] == "a flag"


def test_the_file_is_named_by_the_flag_then_by_the_environment_then_by_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, {}) == Settings()
    for name in ("kmigrate", "env", "flag"):
        Path(f"{name}.toml").write_text(f'[defaults]\nlink = "{name}"', encoding="utf-8")
    assert load(None, {}).defaults.link == "kmigrate"
    assert load(None, {"KMIGRATE_CONFIG": "env.toml"}).defaults.link == "env"
    assert load(Path("flag.toml"), {"KMIGRATE_CONFIG": "env.toml"}).defaults.link == "flag"
    assert _error(Path("gone.toml")).ref == "no-config-file"


def test_secrets_come_from_a_variable_or_a_file_and_are_never_shown(write: Write, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from-a-file\n", encoding="utf-8")
    text = TWO + (
        '[clusters.source.admin]\n"oidc.secret" = { env = "PW" }\n"ssl.key.pem" = { file = "secret" }\n'
        '"the.username" = "plain-user"\n"socket.timeout.ms" = 7\n"enable.x" = true\n'
    )
    env = {"PW": "from-the-env", "KMIGRATE_CLUSTERS__TARGET__ADMIN__OIDC_SECRET": "from-an-override"}
    settings = load(write(text), env)
    admin = settings.cluster("source").admin
    assert {key: str(value) for key, value in admin.items()} == {
        "oidc.secret": "from-the-env",
        "ssl.key.pem": "from-a-file",
        "the.username": "plain-user",
        "socket.timeout.ms": "7",
        "enable.x": "true",
    }
    assert str(settings.cluster("target").admin["oidc.secret"]) == "from-an-override"
    shown = f"{settings!r} {settings.cluster('source')} {admin['oidc.secret']}"
    for secret in ("from-the-env", "from-a-file", "from-an-override", "plain-user"):
        assert secret not in shown
    assert "socket.timeout.ms" in shown


@pytest.mark.parametrize(
    ("text", "ref", "named", "expected"),
    [
        ("[clusterz.a]", "unknown-config-section", "did you mean 'clusters'", "[clusters.NAME]"),
        ("router = 1", "bad-config-value", "router: found 1", "[router]"),
        (TWO + "[router]\nprot = 1", "unknown-config-key", "did you mean 'port'", "advertised_host"),
        (TWO + '[router]\nport = "x"', "bad-config-value", "[router] port: found 'x'", "bootstrap listener"),
        (TWO + '[router]\nport = "9094"', "bad-config-value", "found '9094'", "a number stands without quotes: 9094"),
        (TWO + "[router]\nname = 5", "bad-config-value", "found 5", 'a text stands in quotes: "5"'),
        (TWO + "[mirror]\nport = 9094", "unknown-config-key", "the key belongs in [router]", "expected in [mirror]"),
        ('[router]\nssl.ca.location = "ca.pem"', "unknown-config-key", "stand under [clusters.NAME]", "[router]"),
        ('bootstrap.servers = "h:1"', "unknown-config-section", "stand under [clusters.NAME]", "[clusters.NAME]"),
        ('"bootstrap.servers" = "h:1"', "unknown-config-section", "stand under [clusters.NAME]", "[clusters.NAME]"),
        (
            '[clusters.c]\nbootstrap_servers = "h:1"',
            "unknown-config-key",
            "did you mean 'bootstrap.servers'",
            "expected",
        ),
        (
            "security.protocol=SASL_SSL\nbootstrap.servers=h:1",
            "config-syntax",
            "line 1",
            'under [clusters.NAME]: "security.protocol" = "SASL_SSL"',
        ),
        (
            "ssl.truststore.location=/a/b.jks",
            "config-syntax",
            "line 1",
            'under [clusters.NAME]: "ssl.ca.location" (a PEM',
        ),
        (
            "sasl.oauthbearer.client.credentials.client.secret=hush",
            "config-syntax",
            "line 1",
            'client.secret" = "(hidden)"',
        ),
        (TWO + "[router]\nport = 70000", "bad-config-value", "found 70000", "0 to 65535"),
        (TWO + "[router]\nport = true", "bad-config-value", "found True", "port"),
        (TWO + "[router]\nbroker_ports = 70000", "bad-config-value", "found 70000", "0 to 65535"),
        (TWO + "[router]\nbroker_ports = { a = 9101 }", "bad-config-value", "'a' = 9101 is no node id", "{ 1 = 9101"),
        (TWO + "[router]\nbroker_ports = { 1 = 0 }", "bad-config-value", "'1' = 0 is no node id", "{ 1 = 9101"),
        (TWO + "[router]\nbroker_ports = { 1 = true }", "bad-config-value", "'1' = True is no node id", "{ 1 = 9101"),
        (TWO + '[router]\nbroker_ports = { 1 = "9101" }', "bad-config-value", "'1' = '9101' is no node", "{ 1 = 9101"),
        (TWO + "[router]\nbroker_ports = { 1 = 9101, 2 = 9101 }", "bad-config-value", "2 = 9101: the node id", "table"),
        (TWO + "[router]\nbroker_ports = { 1 = 9101, 01 = 9102 }", "bad-config-value", "stands there twice", "table"),
        (TWO + "[promote]\nfence_timeout_s = nan", "bad-config-value", "found nan", "1 to 60"),
        (TWO + '[mirror]\nhole_filler = "hope"', "bad-config-value", "found 'hope'", "markers, transactions"),
        (TWO + "[mirror]\nsync_acls = 1", "bad-config-value", "found 1", "true or false"),
        (TWO + '[mirror]\nconfig_exclude = "x"', "bad-config-value", "found 'x'", "a list of regular expressions"),
        (TWO + '[mirror]\nuse_defaults_from = "both"', "bad-config-value", "found 'both'", "source, target"),
        (TWO + '[mirror]\nconfig_exclude = ["("]', "bad-config-value", "'(' is no regular expression", "a list"),
        (TWO + '[mirror]\nacl_exclude = ["(a+)+"]', "bad-config-value", "'(a+)+' may take for ever", "a list"),
        ("[clusters.a]", "bad-config-value", "missing", "host:port"),
        ("clusters = 3", "bad-config-value", "clusters: found 3", "[clusters]"),
        ("clusters.a = 3", "bad-config-value", "clusters.a: found 3", "[clusters.a]"),
        ('[clusters.a]\n"bootstrap.servers" = "h"', "bad-config-value", "'h' is not host:port", "host:port"),
        ('[clusters.a]\n"bootstrap.servers" = "h:0"', "bad-config-value", "bad port", "1 to 65535"),
        ('[clusters.a]\n"bootstrap.servers" = "h:9,"', "bad-config-value", "is not host:port", "host:port"),
        ('[clusters.a]\n"bootstrap.servers" = 5', "bad-config-value", "found 5", "host:port"),
        ('[clusters.a]\n"bootstrap.server" = "h:1"', "unknown-config-key", "did you mean 'bootstrap.servers'", "admin"),
        (TWO + '[clusters.b]\n"linger.ms" = 5', "unknown-config-key", "[clusters.b] linger.ms", "[clusters.b.admin]"),
        ('[clusters.a]\n"bootstrap.servers"="h:1"\n"request.timeout.ms" = 5', "bad-config-value", "found 5", "3600000"),
        ('[clusters.a]\n"bootstrap.servers"="h:1"\n"client.id" = "a b"', "bad-config-value", "'a b'", "without spaces"),
        ('[clusters.a]\n"bootstrap.servers" = {env="NO"}', "bad-config-value", "NO is not set", "NO to be set"),
        ('[clusters.a]\n"bootstrap.servers" = {file="no"}', "bad-config-value", "cannot be read", "readable file"),
        (TWO + '[clusters.source.admin]\n"bootstrap.servers" = "h:1"', "bad-config-value", "bootstrap", "own section"),
        (TWO + '[defaults]\ntarget = "elsewhere"', "bad-config-value", "'elsewhere'", "source, target"),
        ("[router\nport = 1", "config-syntax", "line 1", "TOML"),
        (f"[router]\nport = {'9' * 5000}", "config-syntax", "4300", "TOML"),
        (f"x = {'[' * 3000}{']' * 3000}", "config-syntax", "nested", "TOML"),
        ('[clusters.a]\n"bootstrap.servers" = {file="~nobody-has-it/x"}', "bad-config-value", "~nobody", "readable"),
        ('[clusters.a]\n"bootstrap.servers" = {file="a\\u0000b"}', "bad-config-value", "cannot be read", "readable"),
        (
            '[clusters.a]\n"bootstrap.servers"="h:1"\n"security.protocol"="SSL"\n"ssl.ca.location"="~nobody-has-it/x"',
            "bad-config-value",
            "is no file",
            "PEM",
        ),
    ],
)
def test_every_mistake_names_the_file_the_key_and_what_is_expected(
    write: Write, text: str, ref: str, named: str, expected: str
) -> None:
    path = write(text)
    error = _error(path)
    assert error.ref == ref
    assert str(path) in error.what
    assert named in error.what
    assert expected in error.next_step
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("KMIGRATE_ROUTR__PORT", "did you mean 'router'"),
        ("KMIGRATE_ROUTER__PROT", "did you mean 'port'"),
        ("KMIGRATE_CLUSTERS__SOURCE", "names no section and key"),
        ("KMIGRATE_CLUSTERS__SOURCE__OWNER__X", "[clusters.source]"),
        ("KMIGRATE_ROUTER__PORT", "'nonsense'"),
    ],
)
def test_a_wrong_variable_is_named(write: Write, variable: str, named: str) -> None:
    error = _error(write(TWO), {variable: "nonsense"})
    assert variable in error.what
    assert named in error.what


def test_switches_and_lists_come_from_the_file_and_from_the_environment(write: Write) -> None:
    path = write(TWO + '[mirror]\nsync_acls = false\nconfig_exclude = ["flush\\\\..*"]')
    assert (load(path, {}).mirror.sync_acls, load(path, {}).mirror.config_exclude) == (False, ("flush\\..*",))
    env = {"KMIGRATE_MIRROR__SYNC_ACLS": "TRUE", "KMIGRATE_MIRROR__CONFIG_EXCLUDE": "a.*, b"}
    assert (load(path, env).mirror.sync_acls, load(path, env).mirror.config_exclude) == (True, ("a.*", "b"))


def test_the_ports_of_brokers_are_a_number_or_a_table(write: Write) -> None:
    variable = "KMIGRATE_ROUTER__BROKER_PORTS"
    counted, table = TWO + "[router]\nbroker_ports = 9100", TWO + "[router]\nbroker_ports = { 1 = 9101, 40001 = 9102 }"
    assert load(write(counted), {}).router.broker_ports == 9100
    assert load(write(table), {}).router.broker_ports == {1: 9101, 40001: 9102}
    assert load(write(table), {variable: "9300"}).router.broker_ports == 9300
    assert load(write(counted), {variable: "7=9301, 40001 = 9302"}).router.broker_ports == {7: 9301, 40001: 9302}
    with pytest.raises(UsageError, match="is no node id with a port"):
        load(write(counted), {variable: "7=x"})


def test_an_unknown_cluster_is_answered_with_the_known_ones(write: Write) -> None:
    with pytest.raises(UsageError) as caught:
        load(write(TWO), {}).cluster("sorce")
    assert "did you mean 'source'" in caught.value.what
    assert "source, target" in caught.value.next_step


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    for section, kind in SECTIONS.items():
        assert f"`[{section}]`" in page
        for each in dataclasses.fields(kind):
            assert f"`{each.name}`" in page, each.name


@pytest.mark.parametrize("name", ["gone", "a" * 300, "~nobody-has-it/x", "a\0b"])
def test_a_file_that_cannot_be_is_named_whatever_the_system_says_of_it(name: str) -> None:
    for path, env in ((Path(name), {}), (None, {"KMIGRATE_CONFIG": name})):
        with pytest.raises(UsageError) as caught:
            load(path, env)
        assert caught.value.ref == "no-config-file"
        assert name in caught.value.what


def test_a_file_that_an_editor_has_given_a_mark_is_read(write: Write) -> None:
    assert load(write("\ufeff" + TWO), {}).clusters


def test_a_password_without_quotes_is_not_repeated(write: Write) -> None:
    error = _error(write(TWO + "[router]\nkey_password = 4711"))
    assert "4711" not in str(error)
    assert error.next_step.endswith('a text stands in quotes: "(hidden)"')


def test_a_file_that_is_no_text_says_what_is_true_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "k.toml"
    path.write_bytes(b"\xff")
    error = _error(path)
    assert (error.ref, bool(error.still_true), error.next_step) == ("config-syntax", True, "save it as UTF-8")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[router]\n\nport = 'x'", "line 3: [router] port"),
        ('[clusters.c]\n"bootstrap.servers" = "h:1"\n\n"client.id" = 5', "line 4: [clusters.c] client.id"),
        ('[clusters.c]\nbootstrap.servers = "h:1"\nclient.id = 5', "line 3: [clusters.c] client.id"),
        ('[clusters.c]\r\nbootstrap.servers = "h:1"\r\nclient.idd = "x"', "line 3: [clusters.c] client.idd"),
        ("# a comment\n[ruoter]\nport = 1", "line 2: no such section"),
        ('# a comment\n[cluster.old]\n"client.id" = "x"', "line 2: no such section"),
        ('[clusters.c]\nbootstrap.servers = { env = "NOWHERE" }', "line 2: [clusters.c] bootstrap.servers"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(text: str, place: str, write: Write) -> None:
    path = write(text)
    assert _error(path).what.startswith(f"{path}, {place}")
