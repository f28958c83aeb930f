"""A host of sharded_losses.py, in its container: forks a rank for every line of JSON that it reads.

A rank trains an FSDP2 model over Gloo, from the newest checkpoint that it finds, and saves after each step.
It writes lines of JSON: what it resumed from, the digest of the whole state after each step, and which saves
are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which FSDP2 and optimizers import late: every rank would, as each is forked from here
from torch import nn
from torch.distributed.fsdp import fully_shard

from muster.train import Job, ShardedCheckpoints, run

PATIENCE = timedelta(seconds=30)  # until a rank notices that another host is gone, at the latest


def say(**what: object) -> None:
    """Write one line, in one piece: the rank may stop right after it."""
    os.write(1, (json.dumps(what) + "\n").encode())


def stop_before(operation: int) -> None:
    """Stop this process before that operation on files, until its container is deleted."""
    left = operation

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                say(stopped=operation)
                os.kill(os.getpid(), signal.SIGSTOP)
            return function(*arguments, **options)

        return call

    os.fsync = counted(os.fsync)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]


def sharded(job: Job) -> dict[str, Any]:
    """Return a model that the ranks cannot divide evenly, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 131), nn.Linear(131, 7))
    for layer in model:
        fully_shard(layer, mesh=job.mesh())
    fully_shard(model, mesh=job.mesh())
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}


def digest(states: dict[str, Any]) -> str:
    """Return the sum of every weight and moment, gathered from all ranks."""
    moments = [
        value for each in states["optimizer"].state_dict()["state"].values() for value in each.values()
    ]
    found = hashlib.sha256()
    for tensor in [*states["model"].parameters(), *moments]:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def train(job: Job, order: dict[str, Any]) -> None:
    """Resume, if there is a checkpoint, and train up to step `steps`."""
    states, out = sharded(job), Path(order["out"])
    checkpoints = ShardedCheckpoints(job, out, say=lambda _: None)
    found = checkpoints.load(states) or 0
    say(found=found, digest=digest(states) if found else "")
    if order["stop_before"] is not None:
        stop_before(order["stop_before"])
    for number in range(found + 1, order["steps"] + 1):
        torch.autograd.backward(states["model"](torch.ones(2, 64)).square().mean())
        states["optimizer"].step()
        states["optimizer"].zero_grad()
        say(step=number, digest=digest(states))
        checkpoints.save(number, states)
        say(complete=number - 1)  # `save` waits for the one before
    checkpoints.finish()
    say(complete=order["steps"])


def main() -> None:
    """Obey until stdin ends."""
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        rank = os.fork()
        if rank == 0:
            os.environ.update(order["environment"])
            try:
                run(train, order, backend="gloo", timeout=PATIENCE)
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        say(ended=os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))


if __name__ == "__main__":
    main()
