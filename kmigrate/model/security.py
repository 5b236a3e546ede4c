"""How a cluster is sure of us and we of it: TLS, SASL, both or neither, as frozen values.

Secrets are fields that no `repr` shows. A password or token that stands in a file is read again at each login,
so that one that is changed there serves the next connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PLAINTEXT", "Bearer", "Login", "Security", "Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom we believe, and who we are where the broker asks for a certificate."""

    ca_file: str = ""
    """PEM; '' for the authorities that this machine trusts."""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    check_host: bool = True
    """Whether the certificate must name the host that was dialled."""


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password, by PLAIN or SCRAM."""

    mechanism: str
    username: str = field(repr=False)
    password: str = field(default="", repr=False)
    password_file: str = ""
    """Where the password came from a file: read again at each login."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """OAUTHBEARER: a token from a file, or from the standard output of a command, or one that a client passed on."""

    token_file: str = ""
    token_command: tuple[str, ...] = field(default=(), repr=False)
    mechanism: str = "OAUTHBEARER"
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """What a connection does before its first request."""

    tls: Tls | None = None
    sasl: Login | Bearer | None = None

    @property
    def identifies(self) -> bool:
        """Whether the cluster learns by this who comes, so that it can ask what that one may do."""
        return self.sasl is not None or (self.tls is not None and bool(self.tls.cert_file))

    @property
    def principal(self) -> str:
        """Kafka's name of the principal, as far as the configuration tells; a broker may map the name to another."""
        if isinstance(self.sasl, Login):
            return f"User:{self.sasl.username}"
        if self.sasl is not None:
            return "the principal of its token"
        if self.tls is not None and self.tls.cert_file:
            return f"the principal of certificate {self.tls.cert_file}"
        return "User:ANONYMOUS"

    @property
    def protocol(self) -> str:
        """Kafka's word for it (`security.protocol`)."""
        if self.sasl is None:
            return "SSL" if self.tls else "PLAINTEXT"
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def librdkafka(self) -> Mapping[str, str]:
        """The same by librdkafka's names; of a bearer's token only that there is one, as it is not a setting."""
        found = {"security.protocol": self.protocol}
        if self.tls is not None:
            given = {
                "ssl.ca.location": self.tls.ca_file,
                "ssl.certificate.location": self.tls.cert_file,
                "ssl.key.location": self.tls.key_file,
                "ssl.key.password": self.tls.key_password,
            }
            found |= {name: value for name, value in given.items() if value}
            found["ssl.endpoint.identification.algorithm"] = "https" if self.tls.check_host else "none"
        if self.sasl is not None:
            found["sasl.mechanism"] = self.sasl.mechanism
        if isinstance(self.sasl, Login):
            found |= {"sasl.username": self.sasl.username, "sasl.password": self.sasl.password}
        return found


PLAINTEXT = Security()
