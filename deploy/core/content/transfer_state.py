"""Files on their way to hosts: which, to whom, in which tree of hosts, and how much of each has arrived."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..connect.cluster import Cluster
from ..connect.fanout import HostOutcomes, ask_every
from ..wire.certificate_name import certificate_name
from .messages import BLOB_SERVE, FilesServed

# For hosts whose clock is wrong: a certificate is valid as long as its key exists, in memory.
ALWAYS = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31)  # UTC, as X.509 defines


def identities(hosts: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """For each host the PEM texts that make its identity (core/agent/transfers.py)."""
    # Only some commands bring files to hosts, and this takes longer to load than the rest of the driver.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

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


ANSWER_SECONDS = 60.0
SERVE_SECONDS = 900.0  # a host reads and compares the files that an earlier push has left
WIDTH = 2
"""The number of hosts to which a host sends a file at once."""


class LocalFile(NamedTuple):
    """A file of this machine, by its SHA-256, with its bytes."""

    digest: str
    size: int
    path: Path


@dataclass(frozen=True)
class Transfer:
    """A file that goes to the hosts that lack it, by its SHA-256."""

    digest: str
    size: int
    hosts: tuple[str, ...]
    open: Callable[[], BinaryIO]
    """Opens it; OSError if it is not on this machine."""
    source: str = ""
    """The host that has all of it, if it comes from a host."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of requests about it, beside its digest."""
    forget: bool = False
    """Whether hosts remove it when every host has it."""
    is_right: Callable[[], bool] = lambda: True
    """Whether its source has the right content: checked by the driver when a host reports it as wrong."""
    replacement: Callable[[str], Transfer | None] = lambda host: None
    """The transfer for a host that could not get it from its source."""


@dataclass
class Receiver:
    """A host that waits for a file: how many bytes of it have arrived, and how often it got stuck."""

    have: int
    tries: int = 0


@dataclass
class ActiveTransfer:
    """A transfer that has begun: the hosts that have the file by now, and those that wait for it."""

    transfer: Transfer
    complete_on: list[str]
    receivers: dict[str, Receiver]

    def in_order(self) -> list[str]:
        """The receivers, those that have most of it first. Any thread may call this."""
        return [host for host, _ in sorted([*self.receivers.items()], key=lambda item: -item[1].have)]


def ancestors(hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The tree of hosts: for each but the first its parent, then, as further choices, those above it."""
    chains: dict[str, tuple[str, ...]] = {}
    for index, host in enumerate(hosts[1:], start=1):
        parent = hosts[(index - 1) // WIDTH]
        chains[host] = (parent, *chains.get(parent, ()))
    return chains


def serve(
    cluster: Cluster, folder: str, digests: Mapping[str, Sequence[str] | None]
) -> HostOutcomes[FilesServed]:
    """Let each host serve files of a folder to the others alone; returns how much of each file it has.

    `digests`: the files that each host needs; None for all files of earlier transfers.
    """
    identity = identities(digests)

    def arguments(host: str) -> dict[str, Any]:
        return {
            "folder": folder,
            "identity": identity[host],
            "addresses": cluster.data_addresses(host),
            "peers": cluster.peer_addresses(host),
            "digests": digests[host],
        }

    channels = {host: cluster.channels[host] for host in digests}
    return ask_every(channels, BLOB_SERVE, SERVE_SECONDS, arguments)
