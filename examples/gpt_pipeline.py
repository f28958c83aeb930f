"""The GPT of gpt.py as a pipeline: each rank has some of its blocks, and forwards micro-batches to the next.

    python examples/gpt_pipeline.py --spawn 2 --micro-batches 4
    muster launch --hosts hosts.txt examples/gpt_pipeline.py --layers 24 --micro-batches 16

Ranks exchange only activations and their gradients, so a slow network between hosts costs little. A rank
waits for (ranks - 1) / (micro-batches + ranks - 1) of each step. Checkpoints and evaluation are left out.
"""

from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch
from gpt import BYTES, GPT, Config, draw_weights, learning_rate, load_data, loader_of, options, say
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from muster.train import Job, StepLog, TrainError, run


@dataclass(frozen=True)
class PipelineConfig(Config):
    """The options of gpt.py and this one."""

    micro_batches: int = 4  # of a step; all are in the pipeline at the same time


class Stage(nn.Module):
    """Some blocks of a GPT; the first stage has the embedding as well, the last one the head."""

    def __init__(self, gpt: GPT, rank: int, ranks: int) -> None:
        super().__init__()
        count = len(gpt.blocks)
        self.blocks = gpt.blocks[count * rank // ranks : count * (rank + 1) // ranks]
        self.embedding = gpt.embedding if rank == 0 else None
        self.head = gpt.head if rank == ranks - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """From tokens, [n, time], or activations, [n, time, width], to activations or logits."""
        x = self.embedding(x) if self.embedding else x
        for block in self.blocks:
            x = block(x)
        return self.head(nn.functional.rms_norm(x, x.shape[-1:])) if self.head else x


class PipelineTraining:
    """The stage of this rank, and one step of it."""

    lacks = "accumulate dtype recompute compile eval_every save_every resume profile tensorboard peak sample"

    def __init__(self, config: PipelineConfig, job: Job) -> None:
        if given := [each for each in self.lacks.split() if getattr(config, each) != getattr(Config, each)]:
            raise TrainError(f"gpt_pipeline.py has no --{given[0].replace('_', '-')}")
        if config.layers < job.world_size or config.batch_size % config.micro_batches:
            raise TrainError("a rank needs a block (--layers), and --micro-batches must divide --batch-size")
        self.config, self.job, self.step = config, job, 0
        gpt = GPT(config)  # in host memory, before this rank's part of it goes to its device
        torch.manual_seed(config.seed)
        draw_weights(gpt, config.layers)
        job.seed(config.seed, stream=0)  # every rank reads the whole batch
        self.stage = Stage(gpt, job.rank, job.world_size).to(job.device)
        # Example tensors give the shapes: without them the ranks exchange shapes as pickles.
        tokens = torch.empty(config.batch_size // config.micro_batches, config.context, dtype=torch.int64)
        hidden, logits = (torch.empty(*tokens.shape, n, requires_grad=True) for n in (config.width, BYTES))
        takes, gives = hidden if job.rank else tokens, logits if self.stage.head else hidden
        stage = PipelineStage(self.stage, job.rank, job.world_size, job.device, takes, gives)
        self.schedule = ScheduleGPipe(stage, config.micro_batches, loss_fn=mean_loss)
        embedding = [weight for name, weight in self.stage.named_parameters() if name == "embedding.weight"]
        products = [weight for name, weight in self.stage.named_parameters() if name != "embedding.weight"]
        groups: list[dict[str, Any]] = [{"params": products}, {"params": embedding, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=config.weight_decay)

    def run_step(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Take a step; returns the mean loss of the batch and the norm of all gradients, on every rank."""
        losses: list[Tensor] = []
        first = (inputs.to(self.job.device),) if self.stage.embedding else ()
        last: dict[str, Any] = {"target": targets.to(self.job.device), "losses": losses}
        self.schedule.step(*first, **(last if self.stage.head else {}))
        square = sum(float(w.grad.square().sum()) for w in self.stage.parameters() if w.grad is not None)
        mean, square = self.job.all_reduce_sum(sum(map(float, losses)) / self.config.micro_batches, square)
        nn.utils.clip_grads_with_norm_(self.stage.parameters(), self.config.clip, torch.tensor(square**0.5))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.config)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return mean, square**0.5


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def train(job: Job, config: PipelineConfig) -> None:
    training = PipelineTraining(config, job)
    loader: Any = loader_of(config, job, load_data(config, job)[0], 0, 1)  # every rank reads the whole batch
    epochs = (loader.batch_sampler.set_epoch(epoch) or loader for epoch in count())
    log = StepLog(job, job.out)
    size = {"samples": config.batch_size, "tokens": config.batch_size * config.context}
    for step, (inputs, targets) in zip(range(1, config.steps + 1), chain.from_iterable(epochs)):  # noqa: B905
        log.lap("data")
        loss, norm = training.run_step(inputs, targets)
        record = log.step(step, loss=loss, lr=learning_rate(step - 1, config), gradient_norm=norm, **size)
        if config.log_every and step % config.log_every == 0:
            say(job, f"step {step}/{config.steps}  loss {loss:.6f}  {record.tokens_per_second:.0f} tokens/s")


if __name__ == "__main__":
    run(train, config := options(PipelineConfig), spawn=config.spawn)
