"""Runs checks on every rank of a job and prints their outcomes: `mpirun -np 3 python -m ...run collectives`.

A check is a function `check_*` that raises on the rank where something is wrong. One job runs many, as each
process spends two seconds to import torch. Ends with JSON on rank 0: of each check, what was wrong, or "".
With CHECK_DEVICE=cuda:0 the tensors are on that GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import rendezvous_store
from muster.train.mpi_backend import register
from tests.train.mpi_checks.values import DEVICE


def main() -> None:
    torch.set_default_device(DEVICE)
    ranks = Ranks.from_env(os.environ)
    timeout = timedelta(seconds=180)
    with rendezvous_store("auto", ranks, timeout, os.environ) as store:
        dist.init_process_group(
            register(), timeout=timeout, store=store, rank=ranks.rank, world_size=ranks.world_size
        )
    outcome = {}
    for module in sys.argv[1:]:
        checks = vars(importlib.import_module(f"tests.train.mpi_checks.{module}"))
        for name in [name for name in checks if name.startswith("check_")]:
            outcome[name] = run(checks[name])
            sys.stderr.write(f"{name}: {'wrong' if outcome[name] else 'right'}\n")  # for a job that hangs
    if ranks.rank == 0:
        sys.stdout.write(json.dumps(outcome) + "\n")
    dist.destroy_process_group()


def run(check: Callable[[], None]) -> str:
    """Return what was wrong, on whichever ranks; only agreed failures leave the job in a known state."""
    torch.manual_seed(0)
    wrong = ""
    try:
        check()
    except Exception:  # noqa: BLE001 - whatever it is, it is the outcome
        wrong = traceback.format_exc()
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, wrong)
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(said) if text)


if __name__ == "__main__":
    main()
