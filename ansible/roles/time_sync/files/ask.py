"""Asks time servers over NTP, before chrony is installed: `python3 -` runs it on a host. It only reads.

Argument, as JSON: `servers` (lines of chrony's `server` or `pool` without that word), and `needed`, the
number of addresses that must answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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


def answers(asked: list[Address]) -> set[Address]:
    """Return the addresses that give the time."""
    with ThreadPoolExecutor(len(asked) + 1) as pool:
        return {address for address, gives in zip(asked, pool.map(gives_time, asked)) if gives}  # 3.9


def gives_time(asked: Address) -> bool:
    """Ask a server until it gives the time, or for the last time."""
    family, address = asked
    for _ in range(TRIES):
        stamp, deadline = os.urandom(8), time.monotonic() + SECONDS
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as opened:
            opened.connect(address)  # then a closed port is an error
            opened.send(CLIENT + stamp)
            while (left := deadline - time.monotonic()) > 0:
                opened.settimeout(left)
                if is_time(opened.recv(512), stamp):
                    return True
    return False


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
    good = answers(list({address for each in found.values() for address in each}))
    silent = [
        f"{server.split()[0]}: {'no answer' if each else 'unknown name'}"
        for server, each in found.items()
        if not good & set(each)
    ]
    print(json.dumps({"reached": len(good) >= asked["needed"], "silent": silent}))


if __name__ == "__main__":
    main()
