"""A user's login to a secure sandbox cluster, in the words of each family of clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Access"]


@dataclass(frozen=True)
class Access:
    """The login of a user to a cluster, with everything that a client of any family needs."""

    username: str
    password_file: str
    ca_file: str
    mechanism: str = "SCRAM-SHA-512"

    def librdkafka(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca_file,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": Path(self.password_file).read_text(encoding="utf-8"),
        }

    def aiokafka(self) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.ca_file),
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": Path(self.password_file).read_text(encoding="utf-8"),
        }

    def toml(self) -> str:
        """Return the login as lines of `kmigrate.toml`. The password stays in the password file."""
        return f'"security.protocol" = "SASL_SSL"\n"ssl.ca.location" = "{self.ca_file}"\n{self.sasl_toml()}'

    def sasl_toml(self) -> str:
        """Return only the SASL lines, in the form of the router's table of credentials."""
        return (
            f'"sasl.mechanism" = "{self.mechanism}"\n'
            f'"sasl.username" = "{self.username}"\n'
            f'"sasl.password" = {{ file = "{self.password_file}" }}\n'
        )
