"""Processes that cannot be ended: they wait in the kernel, and not even SIGKILL reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ..decode import AtMost, lazy_dataclass
from ..text.terminal import harmless
from .bounds import Name, Pid, Rank, Text

MOST_NAMED = 2
REMEDY = "look at dmesg there; it ends when that answers, or with a restart of the host"


@lazy_dataclass(frozen=True)
class StuckProcess:
    """A process that SIGKILL did not end. `state`: as in proc(5).

    `rank`: of the process, if it is of one. `waits_in`: the function of the kernel, as far as it can be read.
    `waits_for`: the file that it uses and its disk, the device, or else the disks with its open files.
    """

    pid: Pid
    name: Name = ""
    state: Annotated[str, AtMost(1)] = ""
    rank: Rank | None = None
    waits_in: Name = ""
    waits_for: Text = ""

    def __str__(self) -> str:
        """`rank 3, process 71 (python3), state D in rq_qos_wait, waits for /mnt/x (ext4 /dev/loop0)`."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        where = f" in {self.waits_in}" if self.waits_in else ""
        state = f", state {self.state}{where}" if self.state else ""
        what = f", waits for {self.waits_for}" if self.waits_for else ""
        name = f" ({self.name})" if self.name else ""
        return harmless(f"{rank}process {self.pid}{name}{state}{what}")

    @property
    def ends_soon(self) -> bool:
        """Whether it ends once it gets a processor: it waits for nothing in the kernel."""
        return self.state in ("", "R")


StuckProcesses = Annotated[tuple[StuckProcess, ...], AtMost(1 << 10)]


def not_ended(processes: Sequence[StuckProcess]) -> str:
    """`cannot be ended: rank 3, process 71 (python3), state D, waits for ...`; few processes are named."""
    named = "; ".join(map(str, processes[:MOST_NAMED]))
    more = len(processes) - MOST_NAMED
    return f"cannot be ended: {named}{f'; and {more} more' if more > 0 else ''}"
