"""Asks time servers over NTP, before chrony is installed: `python3 -` runs it on a host. It only reads.

Argument, as JSON: `servers` (lines of chrony's `server` or `pool` without that word), and `needed`, the
number of addresses that must answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

PORT = 123
ADDRESSES = 4  # of a pool; chrony takes as many
TRIES, SECONDS = 3, 1.0  # for each address
CLIENT = bytes([0x23]) + bytes(39)  # RFC 5905: version 4, mode 3; then the transmit timestamp
SERVER, UNSYNCHRONISED, LAST_STRATUM = 4, 3, 15

Address = tuple[int, Any]


def addresses(server: str) -> list[Address]:
    """Return the addresses of a server or pool; none for a name that is unknown here."""
    name, *options = server.split()
    port = options[options.index("port") + 1] if "port" in options[:-1] else str(PORT)
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys((int(info[0]), info[4]) for info in found))[:ADDRESSES]


def answers(asked: Iterable[Address], needed: int) -> set[Address]:
    """Return the addresses that give the time; ends as soon as `needed` of them do."""
    sockets: dict[socket.socket, tuple[Address, bytes]] = {}
    good: set[Address] = set()
    with contextlib.ExitStack() as stack:
        for family, address in asked:
            with contextlib.suppress(OSError):  # this host may have no IPv6
                opened = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                opened.connect(address)
                opened.setblocking(False)
                sockets[opened] = ((family, address), os.urandom(8))
        for _ in range(TRIES):
            waiting = {opened for opened, (address, _) in sockets.items() if address not in good}
            for opened in waiting:
                with contextlib.suppress(OSError):
                    opened.send(CLIENT + sockets[opened][1])
            deadline = time.monotonic() + SECONDS
            while waiting and len(good) < needed and (left := deadline - time.monotonic()) > 0:
                for opened in select.select(list(waiting), [], [], left)[0]:
                    address, stamp = sockets[opened]
                    if is_time(received(opened), stamp):
                        good.add(address)
                        waiting.discard(opened)
            if len(good) >= needed or not waiting:
                break
    return good


def received(opened: socket.socket) -> bytes:
    """Return a packet; b"" for an error such as a refused port."""
    try:
        return opened.recv(512)
    except OSError:
        return b""


def is_time(packet: bytes, stamp: bytes) -> bool:
    """Whether a packet answers the request with this time stamp, and the server's clock is synchronised."""
    if len(packet) < 48 or packet[24:32] != stamp:
        return False
    leap, mode, stratum = packet[0] >> 6, packet[0] & 7, packet[1]
    return mode == SERVER and leap != UNSYNCHRONISED and 0 < stratum <= LAST_STRATUM


def main() -> None:
    """Print as JSON which servers do not answer, and whether enough addresses do."""
    asked = json.loads(sys.argv[1])
    found = {server: addresses(server) for server in asked["servers"]}
    good = answers(dict.fromkeys(address for each in found.values() for address in each), asked["needed"])
    silent = [
        f"{server.split()[0]}: {'no answer' if each else 'unknown name'}"
        for server, each in found.items()
        if not good & set(each)
    ]
    print(json.dumps({"reached": len(good) >= asked["needed"], "silent": silent}))


if __name__ == "__main__":
    main()
