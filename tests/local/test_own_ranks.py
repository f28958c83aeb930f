"""Programs that start processes of their own: ranks under a launcher, and processes that fail."""

from __future__ import annotations

import pytest

from tests.launching import Project

SPAWNS = """
import os
import torch, torch.distributed as dist, torch.multiprocessing as mp
def worker(rank, size):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["OWN_PORT"]}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()  # torch may abort a process that ends while its threads wait for the other
if __name__ == "__main__":
    import socket
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["OWN_PORT"] = str(free.getsockname()[1])
    mp.spawn(worker, args=(2,), nprocs=2)
"""
FAILS = """
import multiprocessing
def work():
    raise ValueError("boom")
if __name__ == "__main__":
    process = multiprocessing.Process(target=work)
    process.start()
    process.join()
"""


@pytest.mark.soak
def test_a_program_that_starts_its_own_ranks_runs_under_torchrun(project: Project) -> None:
    """With the variable of torchrun, all its ranks would wait for a store that none of them opens."""
    (project.path / "program.py").write_text(SPAWNS)
    done = project.launch("--launcher", "torchrun", "--np", "1", "--script", "program.py", timeout=120)
    assert done.status == 0, done.output
    assert done.output.count("[0 localhost] sum 2") == 2


def test_a_process_that_fails_unnoticed_by_its_rank_is_noted(project: Project) -> None:
    (project.path / "program.py").write_text(FAILS)
    done = project.launch("--script", "program.py")
    assert done.status == 0, done.output
    note = "ended with status 0, but processes that they started failed: ValueError: boom"
    assert f"note: ranks 0-1 {note}" in done.output
