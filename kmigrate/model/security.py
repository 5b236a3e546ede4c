"""Describes how kmigrate and a cluster authenticate each other: TLS, SASL, both or neither, as frozen values.

No `repr` shows secrets. A password or token in a file is read at each login, so a change serves the next connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PLAINTEXT", "Bearer", "Login", "Security", "Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings: the authorities that kmigrate trusts, and its certificate for brokers that ask for one."""

    ca_file: str = ""
    """PEM file; '' for the authorities that this machine trusts."""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    check_host: bool = True
    """True if the certificate must name the host that was dialled."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user name and a password, for PLAIN or SCRAM."""

    mechanism: str
    username: str = field(repr=False)
    password: str = field(default="", repr=False)
    password_file: str = ""
    """File of the password, if the password came from a file; read again at each login."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """An OAUTHBEARER token: from a file, from the standard output of a command, or passed on by a client."""

    token_file: str = ""
    token_command: tuple[str, ...] = field(default=(), repr=False)
    mechanism: str = "OAUTHBEARER"
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """The settings of a connection before its first request: TLS and login."""

    tls: Tls | None = None
    sasl: Login | Bearer | None = None

    @property
    def identifies(self) -> bool:
        """True if the cluster learns from these settings who connects, and can check that principal's rights."""
        return self.sasl is not None or (self.tls is not None and bool(self.tls.cert_file))

    @property
    def principal(self) -> str:
        """Kafka's name of the principal, as far as the configuration tells; a broker may map the name."""
        if isinstance(self.sasl, Login):
            return f"User:{self.sasl.username}"
        if self.sasl is not None:
            return "the principal of its token"
        if self.tls is not None and self.tls.cert_file:
            return f"the principal of certificate {self.tls.cert_file}"
        return "User:ANONYMOUS"

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol` of these settings."""
        if self.sasl is None:
            return "SSL" if self.tls else "PLAINTEXT"
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def librdkafka(self) -> Mapping[str, str]:
        """Return these settings by librdkafka's names; of a bearer token, which is no setting, only the mechanism."""
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
