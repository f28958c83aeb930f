"""The rank of part_examples.py: trainings of the examples, one after the other in one process.

    muster launch examples_program.py curves|reference|compile|speed DEVICE SHORT

It tells the loss of every step of each training, and what else a check needs.
"""

from __future__ import annotations

import gc
import io
import json
import os
import re
import signal
import statistics
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.gpu.jobs import ROOT, tell

sys.path.insert(0, str(ROOT / "examples"))

import gpt
import minimal
from gpt_sharded import ShardedConfig, ShardedTraining

from muster.train import Job, run

MODE, DEVICE, SHORT = sys.argv[1], sys.argv[2], sys.argv[3] == "short"
STOPS_AT, STEPS = 5, 8 if SHORT else 20
SMALL = gpt.Config(steps=STEPS, warm_up=5, log_every=1, eval_every=0, save_every=0, sample=0)
LARGE = gpt.Config(
    layers=12, width=768, heads=12, context=1024, batch_size=32, dtype="bf16",
    steps=30, warm_up=5, log_every=5, eval_every=0, save_every=0, sample=0,
)  # fmt: skip
COMPILED_LAYERS = 4  # to compile 12 takes a minute
if SHORT:
    SMALL = replace(SMALL, layers=2, width=64, context=64, batch_size=8)
    LARGE = replace(SMALL, dtype="bf16", log_every=2)


class Unevaluated:
    """A training without the loss on held-out text, which takes longer than the steps."""

    def evaluate(self, data: gpt.Text) -> float:
        return 0.0


class Sharded(Unevaluated, ShardedTraining):
    """That of gpt_sharded.py."""


class Training(Unevaluated, gpt.Training):
    """That of gpt.py; `before` and `after` are called around the update of each step, with its number."""

    before: Callable[[int], None] = staticmethod(lambda step: None)
    after: Callable[[int], None] = staticmethod(lambda step: None)
    number = 0

    def update(self, lr: float) -> torch.Tensor:
        self.number += 1
        self.before(self.number)
        norm = super().update(lr)
        self.after(self.number)
        return norm


def train(
    job: Job, name: str, config: gpt.Config, kind: type[gpt.Training] = Training
) -> list[dict[str, Any]]:
    """Train as the example does, in a folder called `name`; returns the lines of its steps.jsonl."""
    if job.device.type == "cuda":
        gc.collect()  # the models of the trainings before
        torch.cuda.reset_peak_memory_stats(job.device)
    gpt.train(replace(job, out=job.out / name), config, kind)
    return [json.loads(line) for line in (job.out / name / "steps.jsonl").read_text().splitlines()]


def losses(job: Job, name: str, config: gpt.Config, kind: type[gpt.Training] = Training) -> list[float]:
    """Train silently; returns the loss of each step, and at last of the held-out text, if it is evaluated."""
    with redirect_stdout(io.StringIO()) as shown:
        steps = train(job, name, config, kind)
    held_out = re.findall(r"held-out text ([\d.]+)", shown.getvalue()) if kind is gpt.Training else []
    return [*(float(step["loss"]) for step in steps), *map(float, held_out)]


def losses_of_minimal(job: Job) -> list[float]:
    with redirect_stdout(io.StringIO()) as shown:
        minimal.train(job)
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", shown.getvalue())]


def sharded(*, offload: bool = False) -> ShardedConfig:
    return ShardedConfig(**asdict(SMALL), offload=offload)


def reference(job: Job) -> dict[str, Any]:
    """What is compared with the same on the CPU."""
    return {
        "minimal": losses_of_minimal(job),
        "gpt": losses(job, "gpt", SMALL),
        "gpt, evaluated": losses(job, "evaluated", replace(SMALL, steps=STOPS_AT), gpt.Training),
        "gpt_sharded": losses(job, "sharded", sharded(), Sharded),
    }


def curves(job: Job) -> dict[str, Any]:
    """The same, in every variant of gpt.py, interrupted and resumed."""
    found = reference(job)
    found["bf16"] = losses(job, "bf16", replace(SMALL, dtype="bf16"))
    found["recompute"] = losses(job, "recompute", replace(SMALL, dtype="bf16", recompute=True))
    if job.device.type == "cuda":  # the CPU has few operations in fp16
        found["fp16"] = losses(job, "fp16", replace(SMALL, dtype="fp16"))
    found["offloaded"] = losses(job, "offloaded", sharded(offload=True), Sharded)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        found[number.name], found[f"{number.name} status"] = interrupted(job, number)
    found["sharded, resumed"] = resumed_sharded(job)
    found["profile"] = profiled(job)
    found["silent"] = silent(job) if job.device.type == "cuda" else ""
    return found


def interrupted(job: Job, number: signal.Signals) -> tuple[list[float], int]:
    """A signal at a step saves and ends the training; it resumes at the next."""

    class Interrupted(Training):
        @staticmethod
        def before(step: int) -> None:
            if step == STOPS_AT:
                os.kill(os.getpid(), number)

    status = 0
    try:
        train(job, number.name, SMALL, Interrupted)
    except SystemExit as end:
        status = int(end.code or 0)
    return losses(job, number.name, replace(SMALL, resume=True)), status


def resumed_sharded(job: Job) -> list[float]:
    """With optimizer and weights in host memory: a checkpoint must put them there again."""
    config = sharded(offload=True)
    losses(job, "resumed", replace(config, steps=STOPS_AT), Sharded)
    return losses(job, "resumed", replace(config, resume=True), Sharded)


def profiled(job: Job) -> dict[str, int]:
    """How many events of each kind a profile of three steps has."""
    train(job, "profile", replace(SMALL, profile="3:5"))
    trace = json.loads((job.out / "profile" / "profile" / "rank-0000.json").read_text())
    kinds = [event.get("cat", "") for event in trace["traceEvents"]]
    return {kind: kinds.count(kind) for kind in ("cpu_op", "kernel", "gpu_memcpy")}


def silent(job: Job) -> str:
    """What makes the host wait for the device in steps that are neither logged nor saved; or empty."""

    class Silent(Training):
        @staticmethod
        def after(step: int) -> None:
            if step in {STOPS_AT, STOPS_AT + 2}:
                torch.cuda.set_sync_debug_mode("error" if step == STOPS_AT else "default")

    try:
        train(job, "silent", replace(SMALL, log_every=0), Silent)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def compiled(job: Job) -> dict[str, Any]:
    """The compiler's files are kept for `speed`, which needs no time for them then."""
    config = replace(LARGE, layers=COMPILED_LAYERS, compile=True, steps=2, log_every=1)
    return {"compile": losses(job, "compile", config)}


def speed(job: Job) -> dict[str, Any]:
    """Tokens a second, MFU and memory of a larger model."""
    found: dict[str, Any] = {"peak": gpt.peak_flops(job.device, torch.bfloat16)}
    small = replace(LARGE, layers=COMPILED_LAYERS)
    for name, config in {
        "12 layers": LARGE,
        "12 layers, activation checkpointing": replace(LARGE, recompute=True),
        f"{COMPILED_LAYERS} layers": small,
        f"{COMPILED_LAYERS} layers, torch.compile": replace(small, compile=True),
    }.items():
        steps = train(job, name, config)
        rate = statistics.median(step["tokens_per_second"] for step in steps[1:])
        mfu = rate * gpt.GPT(config).flops_per_token / found["peak"]
        found[name] = {
            "loss": steps[0]["loss"], "rate": rate, "mfu": mfu, "memory": steps[-1]["peak_memory_bytes"],
        }  # fmt: skip
    return found


def checked(job: Job) -> dict[str, Any]:
    """Curves, and on a GPU the checks of library_checks.py."""
    from benchmarks.gpu import library_checks  # noqa: PLC0415

    return curves(job) | {"library": library_checks.run(job) if job.device.type == "cuda" else {}}


def main(job: Job) -> None:
    """Do what MODE says, with products in full float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    work = {"curves": checked, "reference": reference, "compile": compiled, "speed": speed}
    tell(work[MODE](job) | {"device": str(job.device), "backend": job.backend, "torch": torch.__version__})


if __name__ == "__main__":
    run(main, backend="gloo" if DEVICE == "cpu" else "nccl")
