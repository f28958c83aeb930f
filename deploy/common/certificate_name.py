"""How a certificate names a host: in a few letters and digits, because its own name may have others."""

from __future__ import annotations

import hashlib


def certificate_name(host: str) -> str:
    """The name in the certificate of a host."""
    return hashlib.sha256(host.encode()).hexdigest()[:32]
