"""The addresses at which this host listens for other hosts of a push: only on its data network."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

from ..facts import bridge_last, host_addresses
from ..rendezvous import PORTS

ALONE = "127.0.0.1"
MOST_ADDRESSES = 8  # each is tried by other hosts, for seconds where packets are dropped
DISCARD = 9  # a port that is never called: to connect a UDP socket sends nothing


def addresses_for(chosen: Sequence[str], peers: Sequence[str]) -> list[str]:
    """The addresses of this host for connections from other hosts.

    `chosen`: the user's settings for this host (addr=, --network). Without it, and if it is an address that
    only a router has (NAT): the source addresses for connections to its peers. If these are on this machine:
    all its addresses.
    """
    resolved = dict.fromkeys(address for name in chosen for address in _resolved(name))
    if own := [address for address in resolved if _is_own(address)]:
        return own[:MOST_ADDRESSES]
    sources = dict.fromkeys(source for peer in peers for source in _source_for(peer))
    if usable := [source for source in sources if source not in peers]:  # each engine has its own 172.17.0.1
        return usable[:MOST_ADDRESSES]
    every = [address for _, address in sorted(host_addresses(), key=bridge_last)]
    return (every if peers else [])[:MOST_ADDRESSES] or [ALONE]


def listen(addresses: Sequence[str]) -> tuple[int, list[socket.socket]]:
    """A port that is free at all these addresses, and a listening socket at each."""
    failed = OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
    for port in reversed(PORTS):  # the rendezvous of a job takes a random port of the same range
        with contextlib.ExitStack() as opened:
            try:
                listeners = [opened.enter_context(_listener(address, port)) for address in addresses]
            except OSError as error:
                failed = error
                continue
            opened.pop_all()
            return port, listeners
    raise failed


def _listener(address: str, port: int) -> socket.socket:
    family, _, _, _, own = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(own[:2] if family == socket.AF_INET else own, family=family, backlog=512)


def _resolved(name: str) -> Iterator[str]:
    """The addresses of a name, or an address itself; not Debian's 127.0.1.1 for a host's own name."""
    with contextlib.suppress(OSError):
        for *_, target in socket.getaddrinfo(name, DISCARD, type=socket.SOCK_DGRAM):
            address = str(target[0])
            if address == name or not _is_loopback(address):
                yield address


def _is_own(address: str) -> bool:
    """Whether this host has an address: another's cannot be bound."""
    family, _, _, _, own = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind(own)
        return True
    return False


def _source_for(peer: str) -> Iterator[str]:
    """The own address for connections to a peer; names are skipped, as they may take long to resolve."""
    with contextlib.suppress(OSError):
        entries = socket.getaddrinfo(peer, DISCARD, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, _, _, _, target = entries[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
        if not (_is_loopback(address) or address.startswith("fe80:")):
            yield address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
