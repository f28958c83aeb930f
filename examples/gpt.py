"""A small GPT on the bytes of a folder of text files, with the same loss at any number of ranks.

    python examples/gpt.py --spawn 2
    torchrun --nproc-per-node 8 examples/gpt.py --data books --dtype bf16 --compile --layers 12 --width 768
    muster launch --hosts hosts.txt examples/gpt.py --steps 1000

The default data are the sources of Python's standard library. With --resume, and in a restarted job, the
training resumes from its newest checkpoint, at any number of ranks. OUT is $MUSTER_OUT or runs/alone.
"""

from __future__ import annotations

import math
import os
import sys
import sysconfig
from argparse import ArgumentParser
from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.benchmark import Timer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Subset

from muster.train import (
    Checkpoints,
    GlobalBatchSampler,
    Job,
    ShardedCheckpoints,
    StepMetrics,
    TrainError,
    TrainingLoop,
    run,
    synchronise,
)
from muster.train.data.pushed import folder as place_of

Text = Subset[tuple[Tensor, Tensor]]
SAME = ("layers", "width", "heads", "context", "batch_size", "seed")  # in a training that resumes
BYTES = 256  # the vocabulary
HOLD_OUT = 20  # every 20th window is for evaluation
TYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PEAKS = {
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "V100": 125e12,
}


@dataclass(frozen=True)
class Config:
    """The options: `--batch-size 64` for batch_size."""

    data: str = sysconfig.get_path("stdlib")  # a folder of text files: all *.py, *.txt and *.md in it
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128  # bytes
    batch_size: int = 32  # sequences in a step, of ALL ranks together
    accumulate: int = 1  # micro-batches in a step
    steps: int = 300
    lr: float = 3e-3  # the peak
    warm_up: int = 20  # steps in which the learning rate rises to its peak
    weight_decay: float = 0.1
    clip: float = 1.0  # the largest 2-norm of all gradients
    dtype: str = "float32"  # of activations: float32, bf16, or fp16 with a scaled loss
    recompute: bool = False  # activation checkpointing: compute a block again instead of keeping it
    compile: bool = False  # torch.compile, which needs a C++ compiler, or Triton on a GPU
    workers: int = 0  # processes that read data, for each rank
    seed: int = 0
    log_every: int = 10  # steps; 0: never
    eval_every: int = 100  # steps, and at the end; 0: only at the end
    save_every: int = 100  # the same
    resume: bool = False  # continue from the newest checkpoint
    profile: str = ""  # steps to profile, such as 10:15; traces in OUT/profile open in ui.perfetto.dev
    tensorboard: bool = False  # the figures for TensorBoard too, in OUT/tensorboard
    peak: float = 0.0  # FLOP/s of a rank's device; 0: from a table, or measured
    sample: int = 200  # bytes of text to generate at the end
    spawn: int = 0  # ranks to start here, without a launcher


class Attention(nn.Module):
    """Causal self-attention with rotary positions and normalised queries and keys, on [n, time, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(x).unflatten(-1, (-1, 3, self.size))  # [n, time, heads, 3, width / heads]
        q, k, v = split.permute(3, 0, 2, 1, 4).unbind()
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def rotated(x: Tensor) -> Tensor:
    """Normalise `x`, [n, heads, time, size], and turn its pairs of numbers by angles that grow with time."""
    time, half = x.shape[-2], x.shape[-1] // 2
    speeds = 10000.0 ** -(torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(time, device=x.device), speeds)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = F.rms_norm(x, x.shape[-1:]).chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1)


class Block(nn.Module):
    """Attention and a perceptron, each on normalised inputs and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(F.rms_norm(x, x.shape[-1:]))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, x.shape[-1:]))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A decoder-only transformer on bytes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(BYTES, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.head = nn.Linear(config.width, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next byte after each of `tokens`, [n, time]: [n, time, 256] in float32."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.config.recompute else block(x)
        return self.head(F.rms_norm(x, x.shape[-1:])).float()  # type: ignore[no-any-return]

    @property
    def flops_per_token(self) -> float:
        """Of forward and backward: Chowdhery et al., PaLM, 2022 (arXiv:2204.02311), appendix B."""
        weights = sum(weight.numel() for weight in self.parameters()) - self.embedding.weight.numel()
        return 6 * weights + 12 * self.config.layers * self.config.context * self.config.width

    @torch.no_grad()
    def generate(self, prompt: bytes, length: int, seed: int) -> bytes:
        """Return `prompt` and `length` sampled bytes after it."""
        device = self.head.weight.device
        random = torch.Generator(device).manual_seed(seed)
        tokens = torch.tensor([list(prompt)], device=device)
        for _ in range(length):
            chances = self(tokens[:, -self.config.context :])[:, -1].div(0.8).softmax(dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=random)], dim=1)
        return bytes(tokens[0].tolist())


def draw_weights(module: nn.Module, layers: int, name: str = "") -> None:
    """Draw the weights of `module`, which is called `name` in a GPT of so many layers."""
    for inner, weight in module.named_parameters():
        last = f"{name}.{inner}".endswith(("out.weight", "down.weight", "head.weight"))
        nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if last else 0.02)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """The files of a folder as one text, read from the disk window by window."""

    def __init__(self, folder: Path, context: int) -> None:
        self.context = context
        self.files = sorted(path for path in folder.glob("*") if path.suffix in {".py", ".txt", ".md"})
        self.ends = list(accumulate(path.stat().st_size for path in self.files))

    def __len__(self) -> int:
        return max(0, (self.ends[-1] if self.ends else 0) - 1) // self.context

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        window = self._read(number * self.context, self.context + 1)
        tokens = torch.frombuffer(window, dtype=torch.uint8).long()
        return tokens[:-1], tokens[1:]

    def _read(self, start: int, length: int) -> bytearray:
        number, read = bisect_right(self.ends, start), bytearray()
        while len(read) < length:
            with self.files[number].open("rb") as file:
                file.seek(start + len(read) - self.ends[number], os.SEEK_END)
                read += file.read(length - len(read))
            number += 1
        return read


def load_data(config: Config, job: Job) -> tuple[Text, Text]:
    """Return windows for training and for evaluation; every host must have the same files."""
    windows = Windows(place_of(config.data), config.context)
    for host, ends in zip(job.hosts, job.all_gather(windows.ends, list[int]), strict=True):
        if ends != windows.ends:
            raise TrainError(f"{config.data} of {host} has other files: name a folder with --data")
    whole = range(len(windows))
    data, held_out = Subset(windows, [n for n in whole if n % HOLD_OUT]), Subset(windows, whole[::HOLD_OUT])
    if len(data) < config.batch_size or len(held_out) < job.world_size:
        needs = f"--batch-size {config.batch_size} on {job.world_size} ranks; see --data"
        raise TrainError(f"{config.data}: {len(windows)} windows of text (--context) are too few for {needs}")
    return data, held_out


def loader_of(config: Config, job: Job, data: Text, reader: int, readers: int) -> DataLoader[Any]:
    """Return the loader of this rank's inputs and targets: share number `reader` of each batch."""
    sampler = GlobalBatchSampler(
        samples=len(data),
        batch_size=config.batch_size,
        rank=reader,
        world_size=readers,
        seed=config.seed,
        drop_last=True,
    )
    pin = job.device.type == "cuda"
    return DataLoader(data, batch_sampler=sampler, num_workers=config.workers, pin_memory=pin)


def learning_rate(step: int, config: Config) -> float:
    """Rise to the peak during the warm-up, then follow a cosine to a tenth of it."""
    if step < config.warm_up:
        return config.lr * (step + 1) / config.warm_up
    progress = (step - config.warm_up) / max(1, config.steps - config.warm_up)
    return config.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


class Training:
    """The model, its optimizer, and one step of them; gpt_sharded.py has another one."""

    def __init__(self, config: Config, job: Job) -> None:
        self.config, self.job = config, job
        self.reader, self.readers = job.rank, job.world_size  # this rank's share of a batch, and how many
        self.tokens = config.batch_size * config.context  # of a step, of all ranks
        self.gpt = self.make_model()
        job.seed(config.seed, stream=self.reader)
        embedding, *products = self.gpt.parameters()
        groups: list[dict[str, Any]] = [{"params": products}, {"params": [embedding], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=config.weight_decay)
        self.scaler = torch.amp.GradScaler(job.device.type, enabled=config.dtype == "fp16")
        self.states = {"model": self.gpt, "optimizer": self.optimizer, "scaler": self.scaler}

    def make_model(self) -> GPT:
        """Return the model; `self.model` is the same, with gradients averaged over the ranks."""
        gpt = GPT(self.config)
        torch.manual_seed(self.config.seed)
        draw_weights(gpt, self.config.layers)
        if self.config.compile:
            gpt.compile()
        self.model: Any = synchronise(gpt, self.job)
        return gpt

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the cross entropies of all bytes, in nats."""
        kind = TYPES[self.config.dtype]
        with torch.autocast(self.job.device.type, kind, enabled=kind != torch.float32):
            logits = self.model(inputs)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Add the gradients of this rank's share of a global batch; returns the sum of its losses.

        The ranks' gradients are averaged. For the gradient of the mean over the global batch, whatever the
        shares, each rank scales its sum by readers / tokens.
        """
        parts, total = self.config.accumulate, torch.zeros((), device=self.job.device)
        pairs = zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True)
        for part, pair in enumerate(pairs, start=1):
            with nullcontext() if part == parts else self.model.no_sync():
                loss = self.losses(*pair)
                self.scaler.scale(loss * self.readers / self.tokens).backward()
            total += loss.detach()
        self.job.losses.note(total)  # save refuses when one was not finite
        return total

    def update(self, lr: float) -> Tensor:
        """Clip the gradients and take the step; returns their norm before."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.gpt.parameters(), self.config.clip)
        self.scaler.step(self.optimizer)  # leaves out a step whose gradients overflowed
        self.scaler.update()
        self.optimizer.zero_grad()
        return norm

    def total(self, share: float) -> float:
        """Return the sum of all shares of a batch."""
        return self.job.all_reduce_sum(share)[0] * self.readers / self.job.world_size

    @torch.no_grad()
    def evaluate(self, data: Text) -> float:
        """Return the mean loss of the first 512 windows of `data`, fewer if shares would be unequal."""
        windows = min(512, len(data)) // self.readers * self.readers
        loader = DataLoader(Subset(data, range(self.reader, windows, self.readers)), batch_size=32)
        device = self.job.device
        total = sum(self.losses(inputs.to(device), targets.to(device)).item() for inputs, targets in loader)
        return self.total(total) / (windows * self.config.context)

    def checkpoints(self, same: dict[str, Any]) -> Checkpoints | ShardedCheckpoints:
        """Return where checkpoints go; a training with other options than `same` cannot resume from them."""
        return Checkpoints(self.job, self.job.out, same=same)


def train(job: Job, config: Config, kind: type[Training] = Training) -> None:
    """Train on every rank of the job, up to `config.steps`."""
    if config.batch_size < job.world_size * config.accumulate:
        raise TrainError(f"--batch-size is below {job.world_size} ranks x {config.accumulate} micro-batches")
    data, held_out = load_data(config, job)
    training = kind(config, job)
    loader = loader_of(config, job, data, training.reader, training.readers)
    peak = config.peak or peak_flops(job.device, TYPES[config.dtype])
    weights = sum(weight.numel() for weight in training.gpt.parameters())
    say(job, f"{job.world_size} ranks, {job.device}, {config.dtype}: {weights} weights, {len(data)} windows")
    say(job, f"{training.gpt.flops_per_token:.3g} FLOP a token; MFU assumes {peak:.3g} FLOP/s a rank")
    with TrainingLoop(
        job,
        training.states,
        resume=config.resume or None,
        checkpoints=training.checkpoints({name: getattr(config, name) for name in SAME}),
        save_every=config.save_every,
        log_every=config.log_every,
        profile=config.profile,
        tensorboard=config.tensorboard,
    ) as loop:
        for inputs, targets in loop.batches(loader, steps=config.steps):
            loss_sum = training.backward(inputs, targets)
            loop.lap("compute")
            norm = training.update(lr := learning_rate(loop.step - 1, config))
            if loop.due:
                loss = training.total(loss_sum.item() / training.tokens)
                size = {"samples": config.batch_size, "tokens": training.tokens}
                if record := loop.log(loss=loss, lr=lr, gradient_norm=full(norm), **size):
                    say(job, show(record, training, peak))
            if loop.step == config.steps or (config.eval_every and loop.step % config.eval_every == 0):
                say(job, f"step {loop.step}: loss on held-out text {training.evaluate(held_out):.6f}")
    say(job, training.gpt.generate(b"def ", config.sample, config.seed).decode(errors="replace"))


def full(norm: Tensor) -> Tensor:
    """Return a norm whole: that of a sharded model is sharded too."""
    return getattr(norm, "full_tensor", norm.detach)()


def say(job: Job, text: str) -> None:
    if job.rank == 0:
        print(text, flush=True)


def show(record: StepMetrics, training: Training, peak: float) -> str:
    """Return a line of figures; MFU is tokens/s x FLOP a token / (ranks x peak)."""
    rate = record.tokens_per_second or 0.0
    mfu = rate * training.gpt.flops_per_token / (training.job.world_size * peak)
    figures = f"loss {record.loss:.6f}  lr {record.lr:.2e}  norm {record.gradient_norm:.3f}"
    speed = f"{rate:.0f} tokens/s  MFU {mfu:.1%}  {record.peak_memory_bytes / 2**20:.0f} MiB"
    return f"step {record.step}/{training.config.steps}  {figures}  {speed}"


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return NVIDIA's dense figure for `device`; for another one, the measured rate of a matrix product."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" and dtype != torch.float32 else ""
    if rate := next((peak for key, peak in PEAKS.items() if f"{key} " in f"{name} ".replace("-", " ")), None):
        return rate
    size = 512 if device.type == "cpu" else 8192  # a GPU would spend most of a small product on its start
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / Timer("a @ a", globals={"a": a}).blocked_autorange(min_run_time=0.1).median


def options(kind: type[Config]) -> Any:
    """Read the command line: an option for each field of Config."""
    parser = ArgumentParser(description=sys.modules["__main__"].__doc__)
    for each in fields(kind):
        name = f"--{each.name.replace('_', '-')}"
        if isinstance(each.default, bool):
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=type(each.default), default=each.default)
    parser.add_argument("--local-rank", "--local_rank")  # torch.distributed.launch adds it
    values = vars(parser.parse_args())
    del values["local_rank"]  # $LOCAL_RANK has the same value
    return kind(**values)


if __name__ == "__main__":
    run(train, config := options(Config), spawn=config.spawn)
