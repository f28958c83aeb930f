"""The user at the other end of a connection over loopback, which all users of a machine can use."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from ...core.wire.users import name_of

TABLE = Path("/proc/net/tcp")
ROOT = 0
GONE = "a program that has ended already"


def can_tell() -> bool:
    """Whether this machine names the users of connections: Linux does."""
    return TABLE.exists()


def other_user(connection: socket.socket, peer: tuple[str, int]) -> str:
    """Another user at the other end; empty for this user and root, and where no table has users."""
    if not can_tell():
        return ""
    user = owner(TABLE.read_text(), peer, connection.getsockname())
    if user is None:
        return GONE
    return "" if user in {os.getuid(), ROOT} else f"another user of this machine, {name_of(user)}"


def owner(table: str, local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user who has this connection, by /proc/net/tcp (proc(5)); None if no process has it."""
    wanted = [_encoded(*local), _encoded(*remote)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            # A socket that no process has any more counts as root's, and has no inode.
            return int(fields[7]) if int(fields[9]) else None
    return None


def _encoded(address: str, port: int) -> str:
    """An address as in the table: the number of its bytes as this processor reads it."""
    number = int.from_bytes(socket.inet_aton(address), sys.byteorder)
    return f"{number:08X}:{port:04X}"
