"""How often data waits on this host to be sent: a link that is slower than the others shows by that.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import time

from ..host.meter import text

LEAST_BYTES = 1 << 16
READINGS, PAUSE = 10, 0.01  # seconds between two readings
_ESTABLISHED = "01"
_LOOPBACK = ("7F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
_MOST = 1 << 20  # bytes of a table


def unsent_share(root: str = "", uid: int | None = None) -> float:
    """The share of some readings in which a connection of this user had much to send that has not arrived."""
    owner = str(os.getuid() if uid is None else uid)
    waited = 0
    for reading in range(READINGS):
        if reading and not root:
            time.sleep(PAUSE)
        tables = [text(f"{root}/proc/net/{name}", _MOST) for name in ("tcp", "tcp6")]
        waited += any(_waits(line.split(), owner) for table in tables for line in table.split("\n")[1:])
    return waited / READINGS


def _waits(words: list[str], owner: str) -> bool:
    """Whether a line of /proc/net/tcp is a connection to another host with unsent data."""
    if len(words) < 8 or words[3] != _ESTABLISHED or words[7] != owner:
        return False
    address = words[2].partition(":")[0]
    local = address in _LOOPBACK if len(address) == 32 else address.endswith(_LOOPBACK[0])
    return not local and int(words[4].partition(":")[0], 16) >= LEAST_BYTES
