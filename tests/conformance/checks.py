"""The checks of tests/train/mpi_checks as a suite for any backend, for the table of docs/mpi-backend.md."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "train" / "mpi_checks"
AREAS = {
    "collectives": "collectives",
    "layouts": "collectives",
    "sizes": "collectives",
    "features": "types, futures, threads, order",
    "messages": "messages and groups",
    "training": "training",
    "parallel": "DDP's options, FSDP2, tensor and pipeline parallelism",
    "checkpoint": "distributed checkpoints",
    "compiled": "torch.compile",
    "native": "calls that only reach C++",
}
# About our backend, or about the words of its errors: nothing that another one has to do.
OURS = {
    "check_ranks_of_one_host_reduce_large_tensors_by_messages",
    "check_ranks_of_several_hosts_leave_large_tensors_to_mpi",
    "check_a_call_of_plain_tensors_is_one_of_mpi",
    "check_a_caller_that_waits_runs_a_collective_itself",
    "check_a_collective_that_others_do_not_join_can_be_waited_for",
    "check_a_group_can_be_split",
    "check_a_reduction_keeps_the_tensors_of_the_other_ranks",
    "check_a_message_of_2_gib_has_a_size",
    "check_a_message_of_another_size_is_an_error",
    "check_a_message_that_does_not_come_times_out",
    "check_a_message_that_is_done_keeps_no_tensor",
    "check_an_aborted_group_takes_nothing_more",
    "check_counts_above_the_limit_of_one_call",
    "check_what_is_kept_for_torch_2_6_is_kept_until_it_was_waited_for",
    "check_what_is_not_defined_is_refused_and_leaves_the_tensor_as_it_is",
}


def names() -> list[str]:
    """Return the checks as "module.check_name", without an import of torch."""
    return [f"{module}.{check}" for module in AREAS for check in _of(module)]


def _of(module: str) -> Iterator[str]:
    for node in ast.parse((FOLDER / f"{module}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_") and node.name not in OURS:
            yield node.name


def words(name: str) -> str:
    """Return what a check is about, as text: "objects are sent"."""
    return name.split(".check_")[1].replace("_", " ")


class Suite:
    """The checks, each in a process group of its own; `backend` is torch's name of a backend."""

    def __init__(self, backend: str) -> None:
        self.names = names()
        self._backend = backend

    def run(self, name: str, folder: Path, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist

        module, check = name.split(".")
        found = getattr(importlib.import_module(f"tests.train.mpi_checks.{module}"), check)
        torch.manual_seed(0)
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group(
            self._backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
        )
        try:
            found()
            dist.barrier()
        finally:
            torch._dynamo.reset()
            dist.destroy_process_group()
