"""The job of test_failure.py: rank 1 leaves as the argument says, while the others wait for it.

Where MPI is initialised, they wait in a barrier of MPI's: there they would wait forever.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from muster.train.job import failure
from muster.train.job.failure import TrainError, keep_records_in
from muster.train.job.group import process_group
from muster.train.job.ranks import Ranks
from muster.train.job.spawn import spawn
from tests.load import SOAK

if not SOAK:  # whether the product's second is enough for a launcher to end a victim is a question of speed
    failure.VICTIM_WAITS = 60.0


def _raise(error: BaseException) -> Callable[[], None]:
    def leave() -> None:
        raise error

    return leave


WAYS: dict[str, Callable[[], None]] = {
    "exception": _raise(RuntimeError("out of paper")),
    "exit": _raise(SystemExit(3)),
    "mistake": _raise(TrainError("no paper in the tray\nput some in")),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}


def be_a_rank(ranks: Ranks, way: str) -> None:
    keep_records_in(Path(os.environ["MUSTER_OUT"]), ranks.rank)
    with process_group(ranks, backend="gloo") as group:
        group.all_reduce_sum(1.0)
        if group.rank == 1:
            Path(os.environ["MUSTER_OUT"], "left").write_text(str(time.time()))
            WAYS[way]()
        if "mpi4py.MPI" in sys.modules:
            sys.modules["mpi4py.MPI"].COMM_WORLD.Barrier()
        group.all_reduce_sum(1.0)


if __name__ == "__main__":
    if sys.argv[2:] == ["spawn"]:
        sys.exit(spawn(be_a_rank, 2, sys.argv[1]))
    be_a_rank(Ranks.from_env(os.environ), sys.argv[1])
