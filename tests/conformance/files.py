"""PyTorch's own tests of DTensor, FSDP2, checkpoints and functional collectives, from its source.

torch's wheel has the base classes of these tests, but not the tests. PYTORCH_TESTS names the folder
test/distributed of a source tree, and PYTORCH_FILES the files in it, with commas between. A rank of the job
stands for a process, or thread, that a base class would have started.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

REPLACED = {"gloo", "cpu:gloo,cuda:nccl", "threaded", "mpi", None}  # by the backend under test


class Suite:
    """The tests of some files, on `size` ranks, with `backend` wherever a test asks for Gloo."""

    def __init__(self, backend: str, size: int) -> None:
        folder = Path(os.environ["PYTORCH_TESTS"])
        sys.path.insert(0, str(folder.parent))
        self._backend, self._size = backend, size
        self._cases: dict[str, tuple[type[Any], str]] = {}
        for file in os.environ["PYTORCH_FILES"].split(","):
            for kind in _kinds(folder / file):
                for test in unittest.defaultTestLoader.getTestCaseNames(kind):
                    self._cases[f"{file}:{kind.__name__}.{test}"] = (kind, test)
        self.names = list(self._cases)

    def run(self, name: str, folder: Path, rank: int, size: int) -> None:
        kind, test = self._cases[name]
        case: Any = kind(test)
        if "world_size" not in vars(kind):  # the number of GPUs, or any
            case = type(kind.__name__, (kind,), {"world_size": property(lambda _: size)})(test)
        elif int(case.world_size) != size:
            raise unittest.SkipTest(f"needs {case.world_size} ranks")
        case.rank, case.file_name = rank, str(folder / "store")
        if getattr(getattr(case, test), "__unittest_skip__", False):
            raise unittest.SkipTest("skipped by torch")
        with patch.object(dist, "init_process_group", self._instead(dist.init_process_group)):
            try:
                self._run(case, test, folder)
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()

    def _run(self, case: Any, test: str, folder: Path) -> None:
        threaded = isinstance(case, MultiThreadedTestCase)
        if threaded or "init_method" in dir(type(case)):  # FSDPTest's runner makes the group as well
            store = dist.FileStore(str(folder / "group"), self._size)
            dist.init_process_group("gloo", store=store, rank=case.rank, world_size=self._size)
        if threaded:
            case.perThreadSetUp()
        getattr(case, test)()

    def _instead(self, init: Callable[..., None]) -> Callable[..., None]:
        def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
            options.pop("device_id", None)
            init(self._backend if backend in REPLACED else backend, *args, **options)

        return init_process_group


def _kinds(path: Path) -> Iterator[type[Any]]:
    """Load a file; returns its test cases that run on several ranks."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    for kind in vars(module).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, (MultiProcessTestCase, MultiThreadedTestCase))
            and kind.__module__ == path.stem
        ):
            yield kind
