"""Files on their way to hosts: which, to whom, by which requests, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ..cluster import Cluster
from ..fanout import ask_every
from ..requests.request import FilesServed, Nothing, Request
from .certificates import identities
from .tree import most_complete_first

ANSWER_SECONDS = 60.0
SERVE_SECONDS = 900.0  # a host reads and compares the files that an earlier push has left


class File(NamedTuple):
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
    words: Mapping[str, Any] = field(default_factory=dict)
    """What requests say of it beside its digest."""
    forget: Request[Nothing] | None = None
    """Removes it, if no host needs it any more when every host has it."""


@dataclass(frozen=True)
class Requests:
    """The requests by which a kind of files goes to hosts."""

    take: Request[Nothing]
    complete: Request[Nothing]
    pull: Request[Nothing]


@dataclass
class Receiver:
    """A host that waits for a file: the bytes of it that are there, and how often it got stuck."""

    have: int
    tries: int = 0


@dataclass
class ActiveTransfer:
    """A transfer that has begun: the hosts that have the file by now, and those that wait for it."""

    transfer: Transfer
    complete_on: list[str]
    receivers: dict[str, Receiver]

    def in_order(self) -> list[str]:
        """The receivers, those that have most of it first. Any thread may ask."""
        return most_complete_first({host: one.have for host, one in [*self.receivers.items()]})


Served = TypeVar("Served", bound=FilesServed)


def serve(
    cluster: Cluster, request: Request[Served], digests: Mapping[str, Sequence[str]]
) -> dict[str, Served]:
    """Let each host serve files to the others alone, and learn how much of each file it has."""
    identity = identities(digests)

    def words(host: str) -> dict[str, Any]:
        chosen, peers = cluster.data_addresses(host), cluster.peer_addresses(host)
        return {
            "identity": identity[host],
            "addresses": chosen,
            "peers": peers,
            "digests": digests[host],
        }

    channels = {host: cluster.channels[host] for host in digests}
    return ask_every(channels, request, SERVE_SECONDS, words).require_all()


def transfers_of(files: Iterable[File], needed: Mapping[str, Sequence[str]]) -> list[Transfer]:
    """The files of this machine, in their order, for the hosts that need their digests."""
    return [
        Transfer(file.digest, file.size, hosts, partial(_open, file.path))
        for file in files
        if (hosts := tuple(host for host, digests in needed.items() if file.digest in digests))
    ]


def _open(path: Path) -> BinaryIO:
    return path.open("rb")
