"""Names the processes that a rank without memory on its GPU has found there.

torch asks the driver for them, and prints their numbers. Standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ...common.frames import Frame
from ...common.users import name_of
from ..processes import below, peek, process_table

INITIAL = 0xEFFFFFFC
"""The inode of the host's own PID namespace (PROC_PID_INIT_INO in Linux's proc_ns.h)."""
MOST = 64
_USER = re.compile(r"Process (\d{1,7}) has [\d.]+ \w+ memory in use")


def others_on_gpu(tail: Sequence[str], wrappers: Mapping[int, int]) -> list[Frame]:
    """The fields of `GpuUser` (deploy/connect/reports.py) of the processes that these lines name.

    `wrappers`: the process of each rank's wrapper. The driver counts processes as the host does, so none is
    named in a container with numbers of its own.
    """
    full = [line for line in tail if "CUDA out of memory" in line]
    pids = [int(pid) for line in full[-1:] for pid in _USER.findall(line)][:MOST]
    if not pids or os.stat("/proc/self/ns/pid").st_ino != INITIAL:
        return []
    table = process_table()
    ranks = {pid: rank for rank, wrapper in wrappers.items() for pid in below(wrapper, table)}
    return [_described(pid, ranks) for pid in dict.fromkeys(pids) if pid in table]


def _described(pid: int, ranks: Mapping[int, int]) -> Frame:
    try:
        user = name_of(os.stat(f"/proc/{pid}").st_uid)
    except OSError:  # it has ended
        user = ""
    rank = {"rank": ranks[pid]} if pid in ranks else {}
    return {"pid": pid, "user": user, "program": peek(f"/proc/{pid}/comm", 64).strip(), **rank}
