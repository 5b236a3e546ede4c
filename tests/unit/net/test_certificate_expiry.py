"""The date at which a listener's certificate expires, as a client sees the certificate."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kmigrate.model.listener_access import ListenerTls
from kmigrate.net.tls import ServerTls
from kmigrate.sandbox.security import SandboxSecurity

_DAY_S = 86400


@pytest.mark.parametrize("days", [30, -1])
@pytest.mark.parametrize("demands_certificates", [False, True])
def test_the_expiry_is_known_also_of_an_expired_certificate_and_follows_a_renewal(
    days: int, demands_certificates: bool, tmp_path: Path
) -> None:
    security = SandboxSecurity.create(tmp_path / "authority")
    certificate, key = security.issue("router", days)
    client_ca = str(security.ca_file) if demands_certificates else ""
    listener = ServerTls(ListenerTls(str(certificate), str(key), client_ca=client_ca))
    assert listener.expires_at == pytest.approx(time.time() + days * _DAY_S, abs=60)
    security.issue("router", 10)
    assert listener.renew()
    assert listener.expires_at == pytest.approx(time.time() + 10 * _DAY_S, abs=60)
