"""One rank of the conformance job: runs the tests one after the other, each in a new process group.

    mpirun -np 3 python -m tests.conformance.worker BACKEND SUITE FOLDER FIRST

SUITE is "torch", the suite in torch's wheel; "checks", ours; or "files", from torch's source.
Ranks meet between tests in FOLDER, through files, so that the backend under test is not what they rely on.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.testing._internal import common_utils
from torch.testing._internal.common_distributed import TEST_SKIPS

from muster.train.mpi_backend import register
from tests.conformance import checks, suite
from tests.conformance.name import claim

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
SIZE = int(os.environ["OMPI_COMM_WORLD_SIZE"])
SKIPS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


def main() -> None:
    backend, which, folder, first = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(SIZE), RANK=str(RANK), INIT_METHOD="file://")
    suite.place(folder / "import")
    if backend == "mpi":
        claim()
    tests = _suite(which, backend)
    (folder / f"names.{RANK}").write_text(json.dumps(tests.names))
    (folder / f"names.{RANK}").rename(folder / "names")
    for number, name in enumerate(tests.names):
        if number >= first:
            run(tests, name, folder / f"{number:04d}")


class Suite(Protocol):
    """Tests by name; `run` raises what is wrong, SkipTest, or SystemExit with a code of torch's skips."""

    names: list[str]

    def run(self, name: str, folder: Path, rank: int, size: int) -> None: ...


def _suite(which: str, backend: str) -> Suite:
    if which == "torch":
        return OfTorch(backend)
    if backend == "mpi":
        backend = register()
    if which == "checks":
        return checks.Suite(backend)
    from tests.conformance import files

    return files.Suite(backend, SIZE)


class OfTorch:
    """The suite in torch's wheel."""

    def __init__(self, backend: str) -> None:
        self._backend, self._module = backend, suite.load(backend)
        self.names = suite.names(self._module)

    def run(self, name: str, folder: Path, rank: int, size: int) -> None:
        _skip_marked(getattr(self._module.DistributedTest._DistTestBase, name))
        with group(self._module, self._backend, folder, name) as case:
            getattr(case, name)()


def run(tests: Suite, name: str, folder: Path) -> None:
    """Run one test; leaves its outcome in `folder`, one file for each rank."""
    suite.place(folder)
    meet(folder)
    began = time.monotonic()
    outcome, reason = "pass", ""
    try:
        tests.run(name, folder, RANK, SIZE)
    except unittest.SkipTest as skip:
        outcome, reason = "skip", str(skip)
    except SystemExit as leave:
        skipped = SKIPS.get(leave.code) if isinstance(leave.code, int) else None
        outcome, reason = ("skip", skipped) if skipped else ("fail", f"exit {leave.code}")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the outcome
        outcome, reason = "fail", f"{type(error).__name__}: {error}"
        (folder / suite.FAILED).touch()
        (folder / f"traceback.{RANK}").write_text(traceback.format_exc())
    said = {"outcome": outcome, "reason": reason[:500], "seconds": time.monotonic() - began}
    unfinished = folder / f"unfinished.{RANK}"
    unfinished.write_text(json.dumps(said))
    unfinished.rename(folder / f"outcome.{RANK}")


def _skip_marked(test: Any) -> None:
    """Do as unittest's runner does with what the suite's decorators leave."""
    if getattr(test, "__unittest_skip__", False):
        raise unittest.SkipTest(test.__unittest_skip_why__)


@contextmanager
def group(module: Any, backend: str, folder: Path, name: str) -> Iterator[Any]:
    """Make the test case as the suite's own runner does, in a process group that lives as long."""
    module.INIT_METHOD = f"file://{folder}/again"
    module.Barrier.barrier_id = 0
    # The suite sets this and does not set it back after an exception.
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    dist.set_debug_level(dist.DebugLevel.OFF)
    torch.manual_seed(0)
    case = type("Conformance", (common_utils.TestCase, module.DistributedTest._DistTestBase), {})(name)
    case.rank, case.world_size, case.file_name = RANK, str(SIZE), str(folder / "init")
    case.init_method = f"file://{case.file_name}"
    dist.init_process_group(
        backend,
        case.init_method,
        timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, 60)),
        world_size=SIZE,
        rank=RANK,
    )
    try:
        case._barrier()
        yield case
        case._barrier()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def meet(folder: Path) -> None:
    """Wait until every rank is at this test."""
    (folder / f"ready.{RANK}").touch()
    while not all((folder / f"ready.{rank}").exists() for rank in range(SIZE)):
        time.sleep(0.002)


if __name__ == "__main__":
    main()
