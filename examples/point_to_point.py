"""Messages between two ranks: a ring in which all send at once, and a pipeline of stages.

    python examples/point_to_point.py --spawn 3
    mpirun -np 3 python examples/point_to_point.py
    muster launch --hosts hosts.txt examples/point_to_point.py

If every rank calls send() first, all may wait without end for a receiver. So a ring starts both at
once, and a pipeline has an order: the first stage begins with a send, the others with a receive.
"""

from argparse import ArgumentParser

import torch
import torch.distributed as dist

from muster.train import Job, run

BATCHES = 4


def ring_sum(job: Job, numbers: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' `numbers`: each rank passes received numbers on to the next."""
    following, previous = (job.rank + 1) % job.world_size, (job.rank - 1) % job.world_size
    total, passing = numbers.clone(), numbers
    for _ in range(job.world_size - 1):
        arriving = torch.empty_like(passing)
        both = [dist.P2POp(dist.isend, passing, following), dist.P2POp(dist.irecv, arriving, previous)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        total += arriving
        passing = arriving
    return total


def pipeline(job: Job, stage: torch.Tensor) -> list[torch.Tensor]:
    """Send every batch through the stages of all ranks; returns the results on the last rank.

    isend() returns at once, so a stage computes the next batch while the last one is sent.
    Do not change a tensor before wait().
    """
    results, sent = [], []
    for number in range(BATCHES):
        batch = torch.full((2, 2), float(number + 1), device=job.device)
        if job.rank > 0:
            dist.recv(batch, job.rank - 1)
        batch = batch @ stage
        if job.rank == job.world_size - 1:
            results.append(batch)
        elif work := dist.isend(batch, job.rank + 1):
            sent.append((batch, work))
    for _, work in sent:
        if work:  # None where this process is not in the group
            work.wait()
    return results


def show(job: Job) -> None:
    numbers = torch.arange(4.0, device=job.device) + job.rank
    total = ring_sum(job, numbers)
    dist.all_reduce(numbers)
    if job.rank == 0:
        print(f"ring: {total.tolist()}, all_reduce: {numbers.tolist()}", flush=True)
    results = pipeline(job, torch.eye(2, device=job.device) * 2)
    if job.rank == job.world_size - 1:
        print(f"pipeline: {[batch[0, 0].item() for batch in results]}", flush=True)
    job.barrier()


if __name__ == "__main__":
    (parser := ArgumentParser()).add_argument("--spawn", type=int, default=0, help="ranks to start here")
    run(show, spawn=parser.parse_known_args()[0].spawn)
