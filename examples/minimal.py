"""Your own model, loss, optimizer and DataLoader, at any number of ranks, under any launcher."""

from argparse import ArgumentParser

from torch import linspace, nn, optim
from torch.utils.data import DataLoader, TensorDataset

from muster.train import GlobalBatchSampler, Job, run, synchronise


def train(job: Job) -> None:
    job.seed(0)
    data = TensorDataset(x := linspace(-3, 3, 500).unsqueeze(1), x.sin())
    model = synchronise(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)), job)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    sampler = GlobalBatchSampler(samples=500, batch_size=50, rank=job.rank, world_size=job.world_size)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_sampler=sampler):
            loss = job.global_mean((model(inputs.to(job.device)) - targets.to(job.device)) ** 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if job.rank == 0:
            print(f"{job.world_size} ranks: epoch {epoch}, loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    (parser := ArgumentParser()).add_argument("--spawn", type=int, default=0, help="ranks to start here")
    run(train, spawn=parser.parse_known_args()[0].spawn)
