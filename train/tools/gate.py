"""Measure the hosts of a job before it starts: links, then memory and matrices of every rank's device.

    muster launch --gate 20 train.py                                   one rank for each rank of the job
    torchrun --nproc-per-node 8 ... -m muster.train.tools.gate         the same figures, without a decision

The links are those between the first ranks of the hosts. Ranks print the lines of the tools links and
host_speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..job.group import Group
from ..options import OUTPUT, RANKS, RankOptions, broken, option
from .entry import run
from .host_speed import HostConfig, of_device
from .links import LinksConfig, measure_links, print_about
from .tournament import rounds

LARGE, TRIPS, MEBIBYTES = 1 << 20, 50, 32
"""Bytes of a message, round trips, and memory that a rank copies. Baselines depend on them."""
LEAST_SECONDS = 0.02
"""For one direction of a link, however many links there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateConfig(RankOptions):
    """Measure the hosts of a job before it starts."""

    timeout: float = option(RANKS, 120.0, "seconds to wait for other ranks")
    seconds: float = option(OUTPUT, 10.0, "how long to measure, half of it links")
    matrix: int = option(OUTPUT, 0, "rows of the matrices; 0: 1024 on a CPU, 8192 on a GPU")

    def wrong(self) -> list[str]:
        rules = (
            ("--seconds", self.seconds, 0 < self.seconds <= 86400, "above 0 and at most 86400"),
            ("--matrix", self.matrix, 0 <= self.matrix <= 65536, "from 0 to 65536"),
        )
        return [*broken(rules), *RankOptions.wrong(self)]


def main() -> None:
    """Run the tool."""
    run("python -m muster.train.tools.gate", GateConfig, show)


def show(group: Group, config: GateConfig) -> int:
    """Measure links, then this rank's device; returns the exit status."""
    is_first = [float(rank == group.rank and not group.ranks.local_rank) for rank in range(group.world_size)]
    firsts = [rank for rank, number in enumerate(group.all_reduce_sum(*is_first)) if number]
    print_about(group, len(firsts))
    if len(firsts) > 1:
        directions = 2 * len(rounds(len(firsts)))
        seconds = max(LEAST_SECONDS, config.seconds / 2 / directions)
        measure_links(group, LinksConfig(large=LARGE, seconds=seconds, trips=TRIPS), firsts)
    host = HostConfig(mebibytes=MEBIBYTES, matrix=config.matrix)
    for figure in of_device(host, group.device, config.seconds / 2):
        figure.show()
    group.barrier()
    return 0


if __name__ == "__main__":
    main()
