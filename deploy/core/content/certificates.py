"""Certificates by which the hosts of one push authenticate each other. No other host gets into a push.

An authority is made for each push, and signs a certificate for each host. Its own key ends with the call; the
key of a host goes to that host alone, over SSH.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from ..wire.certificate_name import certificate_name

# For hosts whose clock is wrong: a certificate is valid as long as its key exists, in memory.
ALWAYS = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31)  # UTC, as X.509 defines


def identities(hosts: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """For each host the PEM texts that make its identity (core/agent/transfer/tls.py)."""
    # Only some commands bring files to hosts, and this takes longer to load than the rest of the driver.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    authority_key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "push")])

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> str:
        builder = (
            x509.CertificateBuilder()
            .issuer_name(issuer)
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(ALWAYS[0])
            .not_valid_after(ALWAYS[1])
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        signed = builder.sign(authority_key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()

    def identity(host: str) -> Mapping[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        name = certificate_name(host)
        return {
            "authority": root,
            "certificate": certificate(name, key, authority=False),
            "key": pem.decode(),
        }

    root = certificate("push", authority_key, authority=True)
    return {host: identity(host) for host in hosts}
