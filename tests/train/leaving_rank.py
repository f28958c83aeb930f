"""The job of test_failure.py: rank 1 leaves as the argument says, while rank 0 waits for it.

Where MPI is initialised, rank 0 waits in a barrier of MPI's: there it would wait for ever.
"""

import os
import sys
from collections.abc import Callable

from train.errors import TrainError
from train.group import process_group
from train.ranks import Ranks


def _raise(error: BaseException) -> Callable[[], None]:
    def leave() -> None:
        raise error

    return leave


WAYS = {
    "exception": _raise(RuntimeError("out of paper")),
    "exit": _raise(SystemExit(3)),
    "mistake": _raise(TrainError("no paper in the tray\nput some in")),
    "interrupt": _raise(KeyboardInterrupt()),
}

with process_group("gloo", Ranks.from_env(os.environ)) as group:
    if group.rank == 1:
        WAYS[sys.argv[1]]()
    if "mpi4py.MPI" in sys.modules:
        sys.modules["mpi4py.MPI"].COMM_WORLD.Barrier()
    group.all_reduce_sum(1.0)
