"""A program that uses torch.distributed in its own ways does the same with the recorder as without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy.features.why.on_host.records import read_ring

DEPLOY = Path(__file__).parents[2] / "deploy"
IN_RANK = f"{DEPLOY}/core/agent/in_rank:{DEPLOY}/features/why/in_rank"
PROGRAM = """
import inspect, pickle, subprocess, sys, threading
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")

def step(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1
def backend(module, inputs):
    print([str(node.target) for node in module.graph.nodes])
    return module.forward
print(torch.compile(step, backend=backend, fullgraph=True)(torch.ones(3)))

print(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 1)

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
fully_shard(model)
for _ in range(2):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
print(loss.item())

original = dist.all_reduce
print(inspect.signature(original), pickle.loads(pickle.dumps(original)) is original)
dist.all_reduce = lambda tensor: print("patched", original(tensor))
dist.all_reduce(torch.ones(2))

print(threading.active_count(), flush=True)
show = "import os, sys; print([name for name in [*sys.modules, *os.environ] if 'muster_' in name.lower()])"
subprocess.run([sys.executable, "-c", show], check=True)
dist.destroy_process_group()
"""


def run(folder: Path, record: str) -> str:
    # Port 0: torch takes a free one.
    world = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    recording = {"MUSTER_AGENT": str(folder), "MUSTER_START": record, "PYTHONPATH": IN_RANK}
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, **world, **recording},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_a_program_does_the_same_when_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run(tmp_path, "muster_start") == run(tmp_path, "")
    assert read_ring(str(tmp_path / "ring-0"))["entries"][-1]["op"] == "all_reduce"
