"""The name of a host in a certificate: letters and digits, because its own name may have other characters."""

from __future__ import annotations

import hashlib


def certificate_name(host: str) -> str:
    """The name in the certificate of a host."""
    return hashlib.sha256(host.encode()).hexdigest()[:32]
