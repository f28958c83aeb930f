"""Ranks on one GPU: NCCL with one, its refusal with two, Gloo and Muster's MPI backend with CUDA tensors.

Every job is a `muster launch` without a hosts file. Some run at the same time: most of it is imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from .jobs import ROOT, Ended, launch
from .jobs import run as run_command
from .records import Proof, Recorder

HERE = Path(__file__).parent
RANKS = HERE / "collectives_program.py"
CHECKS = ROOT / "tests/train/mpi_checks/run.py"
MODULES = ("collectives", "features", "messages", "mistakes", "store", "training", "parallel", "checkpoint")
"""Of the checks of the MPI backend; the others are about a fake GPU, and about tensors in host memory."""
CALLS = MODULES[:4]
Recording = Callable[[], Callable[[], None]]
"""Runs a job, and returns the function that records it."""
SECONDS = 70.0 if (os.cpu_count() or 1) >= 8 else 300.0
TWO = ("--slots", "2", "--np", "2")


def run(recorder: Recorder, proof: Proof) -> None:
    """Record each job as it ends."""
    jobs = [*_jobs(recorder, proof), *(_jobs_of_nccl(recorder) if proof.on_gpu else [])]
    with ThreadPoolExecutor(4 if proof.on_gpu else 2) as threads:
        for record in threads.map(lambda job: job(), jobs):
            record()
    if not proof.on_gpu:
        recorder.skip("NCCL", "the tensors are in host memory")


def _jobs(recorder: Recorder, proof: Proof) -> list[Recording]:
    """The jobs on any device."""
    backends = (("mpi", "mpirun"), ("gloo", "mpirun"), ("gloo", "torchrun"))
    device = "cuda:0" if proof.on_gpu else "cpu"
    modules: dict[tuple[str, ...], str]
    modules = {MODULES[::2][:2]: device} if proof.short else {MODULES: device, ("compiled",): device}
    if proof.on_gpu and _gpus() > 1:
        modules[CALLS] = "cuda:1"
    elif proof.on_gpu:
        recorder.skip("CUDA tensors on a device other than the default", "one GPU is visible")
    return [
        *(partial(_checks, recorder, proof, *each) for each in modules.items()),
        *(
            partial(_collectives, recorder, *each, TWO, proof.device)
            for each in backends[: 2 if proof.short else 3]
        ),
    ]


def _jobs_of_nccl(recorder: Recorder) -> list[Recording]:
    one = ("--np", "1")
    return [
        partial(_collectives, recorder, "nccl", "mpirun", one, "cuda:0"),
        partial(_collectives, recorder, "nccl", "torchrun", one, "cuda:0"),
        partial(_refusal_of_nccl, recorder),
        partial(_refusal_of_muster, recorder),
        partial(_refusals_of_the_driver, recorder),
    ]


# -- values --


def _collectives(
    recorder: Recorder, backend: str, launcher: str, ranks: tuple[str, ...], device: str
) -> Callable[[], None]:
    options = ("--launcher", launcher, *ranks)
    ended = launch(RANKS, backend, "cuda:0" if device == "cuda" else device, options=options, seconds=SECONDS)
    title = f"{backend}, {ranks[-1]} ranks by {launcher}: "

    def record() -> None:
        if not _ran(recorder, f"{title}the job ends", ended, int(ranks[-1])):
            return
        *_, first = ended.found
        recorder.figure(f"{title}all_reduce of {first['MiB']} MiB", first["milliseconds"], "ms")
        if backend == "mpi":
            recorder.figure(f"{title}this MPI is CUDA-aware", "yes" if first["cuda_aware"] else "no")
        said = [of_rank["wrong"] for of_rank in ended.found]
        wrong = {name: _of_ranks([of_rank[name] for of_rank in said]) for name in said[0]}
        bad = {name: why for name, why in wrong.items() if why}
        if backend == "gloo":  # torch's, and it lacks some: only a wrong value is a failure
            missing = [name for name, why in bad.items() if "are wrong" not in why]
            recorder.figure(
                f"{title}collectives that Gloo does not have on this device", ", ".join(missing) or "none"
            )
            bad = {name: why for name, why in bad.items() if name not in missing}
        note = "; ".join(f"{name}: {why}" for name, why in bad.items())
        recorder.check(
            f"{title}right values of collectives, messages and streams", not bad, len(wrong), note=note
        )

    return record


def _checks(recorder: Recorder, proof: Proof, modules: tuple[str, ...], device: str) -> Callable[[], None]:
    three = ("--launcher", "mpirun", "--slots", "3", "--np", "3")
    ended = launch(CHECKS, *modules, options=three, seconds=SECONDS, CHECK_DEVICE=device)

    def record() -> None:
        which = "the checks" if len(modules) > 1 else f"the checks of {modules[0]}"
        title = f"{which} of the MPI backend on {device}, 3 ranks"
        last = [line for line in _output_of_rank_0(ended).splitlines() if line.startswith("{")]
        if not recorder.check(
            f"{title}: the job ends",
            ended.status == 0 and bool(last),
            note="" if ended.status == 0 else ended.said,
        ):
            done = [line for line in _errors(ended).splitlines() if line.startswith("check_")]
            recorder.figure("the last check that ended", (done or ["none"])[-1])
            return
        wrong = {name: why for name, why in json.loads(last[-1]).items() if why}
        count = len(json.loads(last[-1]))
        recorder.check(f"{title}: pass", not wrong, f"{count - len(wrong)} of {count}", note=", ".join(wrong))
        for name, why in wrong.items():
            recorder.figure(name, why.strip().splitlines()[-1][:300])
        recorder.figure(f"{title}: time", ended.seconds, "s")
        if wrong:
            text = "\n\n".join(f"{name}\n{why}" for name, why in wrong.items())
            (proof.out / f"mpi-{modules[0]}.txt").write_text(text, encoding="utf-8")

    return record


def _output_of_rank_0(ended: Ended) -> str:
    logs = sorted(ended.out.glob("runs/*/logs/rank-0*.out"))
    return logs[0].read_text() if logs else ""


def _errors(ended: Ended) -> str:
    return "\n".join(path.read_text() for path in sorted(ended.out.glob("runs/*/logs/rank-*.err")))


def _gpus() -> int:
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _of_ranks(said: list[str]) -> str:
    return "; ".join(f"rank {rank}: {why}" for rank, why in enumerate(said) if why)


def _ran(recorder: Recorder, what: str, ended: Ended, ranks: int) -> bool:
    holds = ended.status == 0 and len(ended.found) == ranks
    return recorder.check(what, holds, ended.seconds, unit="s", note="" if holds else ended.said)


# -- two ranks on one GPU --


def _refusal_of_nccl(recorder: Recorder) -> Callable[[], None]:
    ended = launch(RANKS, "nccl", "cuda:0", options=TWO, seconds=SECONDS)

    def record() -> None:
        said = [why for of_rank in ended.found for why in of_rank["wrong"].values() if why]
        own = [line for line in [*said, *_errors(ended).splitlines()] if "Duplicate" in line]
        text = [*own, *said, ended.said][0]
        recorder.figure("NCCL, 2 ranks on one GPU: NCCL's own message", " ".join(text.split())[:400])
        recorder.check("NCCL, 2 ranks on one GPU: it refuses", bool(said) or ended.status != 0, ended.status)

    return record


def _refusal_of_muster(recorder: Recorder) -> Callable[[], None]:
    ended = launch(ROOT / "examples/minimal.py", options=TWO, seconds=SECONDS)

    def record() -> None:
        words = "NCCL needs a GPU for each rank, and these share one"
        recorder.check(
            "NCCL, 2 ranks on one GPU: muster.train says why",
            words in ended.text,
            ended.status,
            note=ended.said,
        )

    return record


def _refusals_of_the_driver(recorder: Recorder) -> Callable[[], None]:
    """`launch --backend nccl` and `check` foresee it, from the number of GPUs of the host."""
    refused = launch(ROOT / "examples/minimal.py", options=(*TWO, "--backend", "nccl"), seconds=SECONDS)
    folder = Path(mkdtemp(prefix="gpu-proof-"))
    (folder / "hosts.txt").write_text("localhost slots=9\n")
    checked = run_command([sys.executable, "-m", "muster", "check", "--json"], folder, SECONDS)

    def record() -> None:
        holds = refused.status == 2 and "NCCL allows one rank on each" in refused.text
        recorder.check("NCCL, 2 ranks on one GPU: launch refuses", holds, refused.status, note=refused.said)
        holds = checked.status == 3 and "slots.above-gpus" in checked.text
        recorder.check("more slots than GPUs: check finds it", holds, checked.status, note=checked.said)

    return record
