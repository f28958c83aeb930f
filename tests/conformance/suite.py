"""PyTorch's own distributed test suite, from the installed wheel, without what it skips by a backend's name.

The suite (torch/testing/_internal/distributed/distributed_test.py) knows backends by their names, and skips
for "mpi" what torch's own MPI backend lacks. Nothing of its text is kept here: it is read where torch is
installed, and the conditions on the name are taken out before it runs.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.testing._internal import common_distributed

FAILED = "failed"  # the file by which a rank says so, in the folder of the test
MODULE = "torch.testing._internal.distributed.distributed_test"


def load(backend: str) -> ModuleType:
    """Run the suite's file as a module, with the conditions on the name of `backend` lifted.

    The environment must have BACKEND, WORLD_SIZE and TEMP_DIR, which the file reads.
    """
    cases: Any = common_distributed.DistTestCases
    for feature in cases.backend_feature.values():
        feature.add(backend)
    cases.skip_collective = {name: set() for name in cases.skip_collective}
    for decorator in ("skip_if_small_worldsize", "skip_if_odd_worldsize"):  # they ask for 8 ranks
        setattr(common_distributed, decorator, unchanged)
    source = Path(torch.__file__).parent.joinpath(*MODULE.split(".")[1:]).with_suffix(".py")
    text = re.sub(r'BACKEND != "(gloo|mpi)"', "False", source.read_text())
    text = text.replace('{"gloo"}', f'{{"gloo", "{backend}"}}')
    # In its barrier, which every test has. Who has waited for too long there is for the supervisor to say.
    text = text.replace("time.sleep(0.1)", "wait_a_little()")
    text = text.replace("time.time() - start_time > timeout", "False")
    module = ModuleType(MODULE)
    module.__file__ = str(source)
    vars(module)["wait_a_little"] = wait_a_little
    sys.modules[MODULE] = module  # pickle looks there for the classes of the suite
    code = compile(text, module.__file__, "exec", dont_inherit=True)  # not this file's __future__ imports
    exec(code, vars(module))  # noqa: S102 - torch's own file
    return module


def names(module: ModuleType) -> list[str]:
    """The tests of the suite that run on a backend."""
    return [name for name in dir(module.DistributedTest._DistTestBase) if name.startswith("test_")]


def unchanged(test: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(test)(test)


def wait_a_little() -> None:
    """Look again soon, unless there is nobody to wait for."""
    if Path(os.environ["TEMP_DIR"], FAILED).exists():
        raise RuntimeError("another rank has failed")
    time.sleep(0.005)


def place(folder: Path) -> None:
    """Give the suite a folder of its own for one test: for its barrier, its lock and its files."""
    for name in ("barrier", "test_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
