"""Questions about one cluster of the first configuration: its address, its protocol and its login."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kmigrate.cli.base import wizard
from kmigrate.cli.guide.draft import ClusterDraft
from kmigrate.config.clusters import parse_bootstrap
from kmigrate.config.java_properties import read_properties, translate_properties
from kmigrate.config.raw_value import RawValue, is_file, located
from kmigrate.config.secret_text import SecretText
from kmigrate.errors import UsageError

__all__ = ["ask_cluster", "bootstrap_fault", "client_of_file"]

_WAYS: tuple[tuple[str, str], ...] = (
    ("PLAINTEXT: no encryption, no login", "PLAINTEXT"),
    ("SSL: TLS without a login", "SSL"),
    ("SSL with a client certificate: mTLS", "MTLS"),
    ("SASL_SSL: a login over TLS", "SASL_SSL"),
    ("SASL_PLAINTEXT: a login without TLS", "SASL_PLAINTEXT"),
    ("as in a property file of a Java client", "FILE"),
)
_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")


def ask_cluster(role: str, name: str, bootstrap: str = "") -> tuple[ClusterDraft, tuple[str, ...]]:
    """Return a cluster's section as the person answers, and the settings of a Java client that were left out."""
    cluster = ClusterDraft(name)
    servers = wizard.type_in(f"Bootstrap servers of the {role} (host:port,…)?", bootstrap, bootstrap_fault)
    way = wizard.choose(f"How do clients connect to the {role}?", _WAYS)
    if way == "FILE":
        left_out = _ask_file(cluster)
        cluster.keys["bootstrap.servers"] = servers
        return cluster, left_out
    cluster.keys["bootstrap.servers"] = servers
    if way == "PLAINTEXT":
        return cluster, ()
    cluster.keys["security.protocol"] = "SSL" if way == "MTLS" else way
    if way.endswith(("SSL", "MTLS")):
        _ask_tls(cluster)
    if way == "MTLS":
        _ask_certificate(cluster)
    if way.startswith("SASL"):
        _ask_login(cluster)
    return cluster, ()


def bootstrap_fault(text: str) -> str:
    """Return what is wrong with bootstrap servers; '' for nothing."""
    try:
        parse_bootstrap(RawValue("bootstrap.servers", text, ""))
    except UsageError as error:
        return error.next_step
    return ""


def client_of_file(cluster: ClusterDraft, file: Path) -> tuple[str, ...]:
    """Take a Java client's property file into a cluster's section, and return the settings that were left out."""
    client = translate_properties(read_properties(file), str(file), Path())
    cluster.keys |= client.keys
    cluster.secrets |= client.secrets
    return client.left_out


def _ask_file(cluster: ClusterDraft) -> tuple[str, ...]:
    def wrong(text: str) -> str:
        try:
            translate_properties(read_properties(_path(text)), text, Path())
        except UsageError as error:
            return f"{error.what}; {error.next_step}"
        return ""

    return client_of_file(cluster, _path(wizard.type_in("Path of the property file?", "", wrong)))


def _ask_tls(cluster: ClusterDraft) -> None:
    path = wizard.type_in("PEM file with the authorities to trust (empty: the machine's)?", "", _no_file_or_empty)
    if path:
        cluster.keys["ssl.ca.location"] = _absolute(path)


def _ask_certificate(cluster: ClusterDraft) -> None:
    questions: Mapping[str, str] = {
        "ssl.certificate.location": "PEM file with kmigrate's certificate and its chain?",
        "ssl.key.location": "PEM file with the private key?",
    }
    for key, question in questions.items():
        cluster.keys[key] = _absolute(wizard.type_in(question, "", _no_file))
    if wizard.agree("Does the private key have a password?", default=False):
        _ask_secret(cluster, "ssl.key.password", "the key's password")


def _ask_login(cluster: ClusterDraft) -> None:
    mechanism = wizard.choose("Which SASL mechanism?", [(each, each) for each in _MECHANISMS])
    cluster.keys["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        place = wizard.choose(
            "Where does the token come from?", [("a file holds the token", "file"), ("a command prints it", "command")]
        )
        question = "Path of the token's file?" if place == "file" else "Command that prints the token?"
        answer = wizard.type_in(question, "", _no_file if place == "file" else _nothing)
        cluster.keys[f"sasl.oauthbearer.token.{place}"] = _absolute(answer) if place == "file" else answer
        return
    cluster.keys["sasl.username"] = wizard.type_in("User name?", "", _nothing)
    _ask_secret(cluster, "sasl.password", "the password")


def _ask_secret(cluster: ClusterDraft, key: str, what: str) -> None:
    place = wizard.choose(
        f"Where does kmigrate read {what}?",
        [
            ("from an environment variable", "env"),
            ("from a file that exists", "file"),
            (f"from the new file {cluster.secret_file(key)}: type the password now", "new"),
        ],
    )
    if place == "new":
        cluster.secrets[key] = SecretText(wizard.type_secret(f"{what[0].upper()}{what[1:]}?"))
    elif place == "env":
        cluster.keys[key] = {"env": wizard.type_in("Name of the variable?", "", _nothing)}
    else:
        cluster.keys[key] = {"file": _absolute(wizard.type_in("Path of the file?", "", _no_file))}


def _nothing(text: str) -> str:
    return "" if text else "nothing yet"


def _no_file(text: str) -> str:
    return "" if text and is_file(_path(text)) else f"there is no file {text}" if text else "nothing yet"


def _no_file_or_empty(text: str) -> str:
    return _no_file(text) if text else ""


def _absolute(path: str) -> str:
    return str(_path(path).absolute())


def _path(text: str) -> Path:
    return located(Path(), text)
