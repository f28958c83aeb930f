"""A program with a bug: rank 1 skips a collective at step 4. `muster demo --hang` runs it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 9):
    if step == 4 and rank == 1:
        continue  # a bad batch: this rank skips it, the others do not
    loss = torch.tensor(2.3 / step)
    dist.all_reduce(loss)
    if rank == 0:
        print(f"step {step} loss {loss.item() / dist.get_world_size():.3f}", flush=True)
dist.barrier()
dist.destroy_process_group()
