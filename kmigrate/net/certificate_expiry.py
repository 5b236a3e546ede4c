"""Finds when a listener's certificate expires: the certificate that a client sees in a handshake in memory.

Python's `ssl` tells nothing of a certificate that a context shows. So the context meets a client that trusts the
certificate itself, whatever its dates are.
"""

from __future__ import annotations

import ssl

__all__ = ["expiry_of"]

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` does not name: an expired certificate has a date, too."""
_MOST_STEPS = 10


def expiry_of(listener: ssl.SSLContext, cert_file: str) -> float:
    """Return when the certificate expires, in seconds since the epoch; 0 if no client would take the certificate."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(cert_file)
    trusting.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(back, there), listener.wrap_bio(there, back, server_side=True)
    try:
        for _ in range(_MOST_STEPS):
            if _done(client):
                break
            _done(server)
    except ssl.SSLError:
        return 0.0  # clients that do not trust the certificate say why, and the router's log names them
    ends = (client.getpeercert() or {}).get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else 0.0


def _done(side: ssl.SSLObject) -> bool:
    """Take a side's next step of the handshake; return whether the handshake is over for that side."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
