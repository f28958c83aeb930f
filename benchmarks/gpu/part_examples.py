"""The examples on a GPU: losses held against the CPU's, what they promise, speed beside other libraries.

First the jobs about values run at the same time, and one fills the compiler's cache; then those about speed
run alone.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from .jobs import ROOT, Ended, launch
from .jobs import run as run_command
from .records import Proof, Recorder

PROGRAM = Path(__file__).with_name("examples_program.py")
SECONDS = 100.0 if (os.cpu_count() or 1) >= 8 else 400.0
THREADS = str(max(1, (os.cpu_count() or 1) // 5))
"""Of each job, as five run side by side."""
# fp32 rounds at 2^-24, so a sum of hundreds of products is right to about 1e-6, and a loss of 5.5 to 1e-5.
# AdamW divides by small numbers, and each step begins where the one before ended: a factor of 100 for all.
FIRST, LATER = 2e-5, 2e-3
BF16 = 0.1  # bf16 rounds at 2^-9
STOPS_AT = 5  # the step of the signal, in the program


def run(recorder: Recorder, proof: Proof) -> None:
    """Record values, then speeds."""
    cache = mkdtemp(prefix="gpu-proof-compiler-")
    job = partial(_job, proof, cache)
    with ThreadPoolExecutor(4 if proof.on_gpu else 2) as threads:
        curves = threads.submit(job, "curves", proof.device)
        # Without a GPU the same job is its own reference: only what compares is tried.
        reference = threads.submit(job, "reference", "cpu") if proof.on_gpu else curves
        demos = [threads.submit(_demo, device, proof) for device in dict.fromkeys((proof.device, "cpu"))]
        compiled = threads.submit(job, "compile", proof.device) if proof.on_gpu else None
        _record_curves(recorder, proof, curves.result(), reference.result())
        _record_demos(recorder, [demo.result() for demo in demos])
        if compiled:
            ended = compiled.result()
            recorder.check(
                "torch.compile: the job ends", ended.status == 0, ended.seconds, unit="s", note=why_not(ended)
            )
    if proof.on_gpu:
        _record_speed(recorder, job("speed", proof.device))
    else:
        recorder.skip("speed and torch.compile", "there is no GPU")
    _record_trainers(recorder, proof)


def _job(proof: Proof, cache: str, mode: str, device: str) -> Ended:
    options = ("--np", "1", "--launcher", "mpirun")
    length = "short" if proof.short else "whole"
    return launch(
        PROGRAM, mode, device, length, options=options, seconds=SECONDS, OMP_NUM_THREADS=THREADS,
        TORCHINDUCTOR_CACHE_DIR=cache, TORCHINDUCTOR_FX_GRAPH_CACHE="1",
    )  # fmt: skip


# -- values --


def _record_curves(recorder: Recorder, proof: Proof, curves: Ended, reference: Ended) -> None:
    for ended, where in ((curves, proof.device), (reference, "cpu")):
        if not recorder.check(
            f"examples on {where}: the job ends", ended.status == 0 and bool(ended.found), ended.seconds,
            unit="s", note="" if ended.found else ended.said,
        ):  # fmt: skip
            return
    found, on_cpu = curves.found[0], reference.found[0]
    recorder.figure("device and backend", f"{found['device']}, {found['backend']}, torch {found['torch']}")
    for name in ("minimal", "gpt", "gpt, evaluated", "gpt_sharded"):
        _near(recorder, f"{name}: the CPU's loss in its first step", found[name][:1], on_cpu[name][:1], FIRST)
        _near(recorder, f"{name}: the CPU's loss in all steps", found[name], on_cpu[name], LATER)
    _near(recorder, "gpt in bf16: the loss of fp32", found["bf16"], found["gpt"], BF16)
    _near(recorder, "activation checkpointing: the loss without it", found["recompute"], found["bf16"], LATER)
    _near(
        recorder, "FSDP2 with offload: the loss without it", found["offloaded"], found["gpt_sharded"], LATER
    )
    if "fp16" in found:
        falls = found["fp16"][-1] < found["fp16"][0] - 0.5
        recorder.check("gpt in fp16 with a scaled loss: the loss falls", falls, found["fp16"][-1])
    _record_interruptions(recorder, found)
    kinds = found["profile"]
    recorder.check("profile: it has the operations, and a GPU's kernels", _complete(kinds, proof), str(kinds))
    if proof.on_gpu:
        why = found["silent"]
        recorder.check("gpt: no step waits for the GPU that is neither logged nor saved", not why, note=why)
        for name, why in found["library"].items():
            recorder.check(f"muster.train {name}", not why, note=why)


def _record_interruptions(recorder: Recorder, found: dict[str, Any]) -> None:
    for name in ("SIGUSR1", "SIGTERM"):
        status = found[f"{name} status"]
        recorder.check(f"{name}: the training saves, and ends with 75", status == 75, status)
        _near(recorder, f"{name}, resumed: the loss without it", found[name], found["gpt"], LATER)
    _near(
        recorder,
        "FSDP2 with offload, resumed: the loss without",
        found["sharded, resumed"],
        found["offloaded"],
        LATER,
    )


def _complete(kinds: dict[str, int], proof: Proof) -> bool:
    return bool(kinds["cpu_op"] and (kinds["kernel"] or not proof.on_gpu))


def why_not(ended: Ended) -> str:
    """What a job that failed said at its end."""
    return ended.said if ended.status else ""


def _near(recorder: Recorder, what: str, got: Sequence[float], right: Sequence[float], within: float) -> None:
    """Check that two curves have the same length, and differ by at most `within`."""
    differences = [abs(a - b) for a, b in zip(got, right, strict=False)]
    holds = len(got) == len(right) > 0 and all(each <= within for each in differences)  # a nan is not
    note = f"at most {within:g}, {len(got)} steps, at last {got[-1]:.4f}"
    recorder.check(what, holds, max(differences, default=0.0), note=note)


def _demo(device: str, proof: Proof) -> tuple[str, Ended, list[float]]:
    """`python -m muster.train` on generated images."""
    folder = Path(mkdtemp(prefix="gpu-proof-"))
    limit = ("--limit", "256") if proof.short else ()
    words = ("--data", "synthetic", "--epochs", "2", *limit, "--out", str(folder))
    backend = "gloo" if device == "cpu" else "nccl"
    command = [sys.executable, "-m", "muster.train", *words, "--backend", backend]
    # By default torch convolves in TF32, which rounds at 2^-11.
    ended = run_command(command, folder, SECONDS, NVIDIA_TF32_OVERRIDE="0", OMP_NUM_THREADS=THREADS)
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return device, ended, [json.loads(line)["loss"] for line in lines]


def _record_demos(recorder: Recorder, demos: list[tuple[str, Ended, list[float]]]) -> None:
    for device, ended, _ in demos:
        recorder.check(
            f"python -m muster.train on {device}: it ends",
            ended.status == 0,
            ended.seconds,
            unit="s",
            note=why_not(ended),
        )
    if all(losses for _, _, losses in demos):
        _near(recorder, "python -m muster.train: the CPU's losses", demos[0][2], demos[-1][2], LATER)


# -- speed --


def _record_speed(recorder: Recorder, ended: Ended) -> None:
    if not recorder.check(
        "speed of gpt: the job ends", bool(ended.found), ended.seconds, unit="s", note=why_not(ended)
    ):
        return
    found = ended.found[0]
    recorder.figure("the dense bf16 rate that MFU assumes", found["peak"] / 1e12, "TFLOP/s")
    models = {name: each for name, each in found.items() if isinstance(each, dict)}
    for name, each in models.items():
        recorder.figure(f"gpt, width 768, bf16, {name}", each["rate"], "tokens/s")
        recorder.check(f"gpt, {name}: MFU is a share", 0 < each["mfu"] < 1, 100 * each["mfu"], unit="%")
        recorder.figure(f"gpt, {name}: peak memory", each["memory"] / 2**20, "MiB")
    large, recomputed, small, compiled = models.values()
    _near(recorder, "torch.compile: the loss without it", [compiled["loss"]], [small["loss"]], BF16)
    less = recomputed["memory"] < large["memory"]
    recorder.check("activation checkpointing takes less memory", less)


def _record_trainers(recorder: Recorder, proof: Proof) -> None:
    """The loops of benchmarks/trainers.py, in turn in one job."""
    folder = Path(mkdtemp(prefix="gpu-proof-"))
    ranks = "1" if proof.on_gpu else "2"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    rounds = "1" if proof.short else "5"
    command = [*torchrun, str(ROOT / "benchmarks/trainers.py"), "--model", "gpt", "--rounds", rounds]
    more = {"TRAINERS_DEVICE": proof.device, "MUSTER_OUT": str(folder), "OMP_NUM_THREADS": "1"}
    ended = run_command(command, folder, SECONDS, **more)
    lines = [line for line in ended.text.splitlines() if line.startswith("{")]
    if not recorder.check(
        "loops beside each other: the job ends", bool(lines), ended.seconds, unit="s", note=why_not(ended)
    ):
        return
    found = json.loads(lines[-1])
    tokens = 16 * (1024 if proof.on_gpu else 128)
    by_hand = [wall for wall, _ in found["times"]["DDP by hand"]]
    for title, row in found["times"].items():
        walls = [wall for wall, _ in row]
        ratio = statistics.median(a / b for a, b in zip(walls, by_hand, strict=True))
        rate = tokens / statistics.median(walls) * 1000
        note = f"{ratio:.3f} of the time of DDP by hand, {len(walls)} rounds"
        if memory := found["memory"].get(title):
            note += f", {memory:.0f} MiB at most"
        recorder.figure(f"GPT in {title}", rate, "tokens/s", note=note)
