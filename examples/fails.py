"""A program with a bug: rank 1 raises an exception at step 4. `muster demo --fail` runs it."""

import torch
import torch.distributed as dist


def check(loss: float, step: int, rank: int) -> None:
    if step == 4 and rank == 1:
        raise ValueError(f"loss is nan at step {step}, after {loss:.3f}")


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 9):
    loss = torch.tensor(2.3 / step)
    check(loss.item(), step, rank)
    dist.all_reduce(loss)
    if rank == 0:
        print(f"step {step} loss {loss.item() / dist.get_world_size():.3f}", flush=True)
dist.destroy_process_group()
