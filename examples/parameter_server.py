"""A parameter server by torch.distributed.rpc: rank 0 has the model, the other ranks send it gradients.

    muster launch --hosts hosts.txt examples/parameter_server.py
    torchrun --nproc-per-node 3 examples/parameter_server.py
    python examples/parameter_server.py --spawn 3

Workers do not wait for each other (Dean et al., Large Scale Distributed Deep Networks, 2012), so a slow one
delays no other. But a gradient may be of older weights, and no two runs are the same. For most models
DistributedDataParallel (minimal.py) is faster and reproducible.

RPC uses TensorPipe, which its authors have put into maintenance mode, and whose removal from torch was
proposed (pytorch issue 162606). Do not build anything large on it.
"""

import threading
from argparse import ArgumentParser
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import rpc
from torch.nn.functional import mse_loss

from muster.train import Job, TrainError, run

STEPS, BATCH = 150, 32  # of each worker


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))


class Server:
    """The model and its optimizer. Each call of a worker runs in a thread of this process."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.updates, self.lock = network(), 0, threading.Lock()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.005)

    def weights(self) -> list[Tensor]:
        with self.lock:
            return [weight.detach().clone() for weight in self.model.parameters()]

    def update(self, gradients: list[Tensor]) -> list[Tensor]:
        """Take a step with a worker's gradients; returns the weights after it."""
        with self.lock:
            for weight, gradient in zip(self.model.parameters(), gradients, strict=True):
                weight.grad = gradient
            self.optimizer.step()
            self.updates += 1
        return self.weights()


def work(server: "rpc.RRef[Server]", seed: int) -> None:
    """Run a worker: compute gradients of the newest weights on its own samples."""
    random, model = torch.Generator().manual_seed(seed), network()
    weights = server.rpc_sync().weights()
    for _ in range(STEPS):
        for mine, newest in zip(model.parameters(), weights, strict=True):
            mine.data = newest
        inputs = torch.rand(BATCH, 1, generator=random) * 6 - 3
        loss = mse_loss(model(inputs), inputs.sin())
        gradients = list(torch.autograd.grad(loss, list(model.parameters())))
        weights = server.rpc_sync().update(gradients)


def serve(job: Job) -> None:
    """Start `work` on every other rank, wait for all of them, and test the model."""
    server = Server()
    reference = rpc.RRef(server)
    workers = [  # whose work may take any time: no time-out
        rpc.rpc_async(f"rank{rank}", work, (reference, rank), timeout=0) for rank in range(1, job.world_size)
    ]
    torch.futures.wait_all(workers)  # raises what a worker raised
    inputs = torch.linspace(-3, 3, 100).unsqueeze(1)
    loss = mse_loss(server.model(inputs), inputs.sin()).item()
    print(f"{server.updates} updates by {len(workers)} workers, loss {loss:.4f}", flush=True)


def main(job: Job) -> None:
    if job.world_size < 2:
        raise TrainError("a parameter server needs at least 2 ranks, of which rank 0 is the server")

    def ranks_of_the_job(*_: object, **__: object) -> Iterator[tuple[dist.Store, int, int]]:
        yield dist.PrefixStore("rpc", job.store), job.rank, job.world_size

    # The rendezvous is done, so RPC needs no other address or port.
    dist.register_rendezvous_handler("job", ranks_of_the_job)
    options = rpc.TensorPipeRpcBackendOptions(init_method="job://", rpc_timeout=job.timeout.total_seconds())
    rpc.init_rpc(f"rank{job.rank}", None, job.rank, job.world_size, options)
    if job.rank == 0:
        serve(job)
    rpc.shutdown()  # waits for all ranks: a worker serves rank 0 until then


if __name__ == "__main__":
    (parser := ArgumentParser()).add_argument("--spawn", type=int, default=0, help="ranks to start here")
    run(main, spawn=parser.parse_known_args()[0].spawn)
