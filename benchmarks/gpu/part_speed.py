"""How fast the card is: by `muster bench`, and by cuBLAS, the driver's memcpy and nccl-tests themselves.

The first two are measured in turn, round by round, in this process; medians are compared. nccl-tests is
compiled from .gpu/nccl-tests, if it is there. On a CPU no ratio is checked.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from muster.deploy.features.bench.programs import host_speed
from muster.deploy.features.bench.programs.host_speed import TYPES, HostConfig

from .libraries import gemm, memcpy
from .records import Proof, Recorder

ROOT = Path(__file__).parents[2]
MUSTER = Path(sys.executable).with_name("muster")
ROUNDS, SECONDS = 4, 0.3
WITHIN = 0.02
COPY = "memory copy"
COMMAND_SECONDS, BUILD_SECONDS = 60.0, 25.0
MIB = 1 << 20
# Sizes of collectives: at the largest, a call takes more than a hundred times what its start takes.
FIRST, LAST = "1M", "4G"


def run(recorder: Recorder, proof: Proof) -> None:
    """Compare the figures of a host and of a collective; nccl-tests is compiled while the GPU computes."""
    with tempfile.TemporaryDirectory(prefix="muster-speed-") as folder:
        building = start_build(Path(folder)) if proof.on_gpu else "there is no GPU"
        Path(folder, "hosts.txt").write_text("localhost slots=1\n", encoding="utf-8")
        medians: dict[str, float] = {}
        with recorder.step("matrices"):
            medians = compare(recorder, proof)
        program = built(building, Path(folder), proof)  # what follows needs the cores
        with recorder.step("muster bench collectives"):
            collectives(recorder, proof, Path(folder), program)
        with recorder.step("muster bench hosts"):
            by_command(recorder, proof, Path(folder), medians)


# -- matrices and copies --


def compare(recorder: Recorder, proof: Proof) -> dict[str, float]:
    """Compare each figure with the library's own; returns the medians of `bench hosts`, by their names.

    A process of its own measures: a launch gets no GPU on which another process is.
    """
    medians: dict[str, float] = {}
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        for kind in (COPY, *TYPES):
            name, ours, theirs = pool.submit(measure, kind, proof).result()
            medians[name] = ours
            record_ratio(recorder, proof, f"bench hosts, {name}, to the library's own", ours, theirs)
    return medians


def measure(kind: str, proof: Proof) -> tuple[str, float, float]:
    """The name of a figure, and its medians by `bench hosts` and by the library itself."""
    device = torch.device("cuda", 0) if proof.on_gpu else torch.device("cpu")
    prefix, rows = ("gpu0 ", 8192) if proof.on_gpu else ("", 256)
    rounds, seconds = (2, 0.02) if proof.short else (ROUNDS, SECONDS)
    config = HostConfig(seconds=seconds, mebibytes=256 if proof.on_gpu else 16)
    if kind == COPY:
        name, amount = f"{prefix}{COPY}", 2 * config.mebibytes * MIB
        work = memcpy(config.mebibytes * MIB, device)
        figure = partial(host_speed.copies, name, config, device)
    else:
        name, amount = f"{prefix}matmul {kind}", 2 * rows**3
        work = gemm(rows, TYPES[kind], device)
        figure = partial(host_speed.product, prefix, kind, config, device, rows)
    own = partial(timed, work, seconds, device)
    return name, *in_turn(lambda: figure().value, lambda: amount / own() / 1e9, rounds)


def in_turn(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float]:
    """The medians of both. They change places in each round, and a first round does not count.

    So neither gains from the clock and the heat that the other leaves.
    """
    figures: dict[Callable[[], float], list[float]] = {ours: [], theirs: []}
    for number in range(rounds + 1):
        for measure in (ours, theirs) if number % 2 else (theirs, ours):
            figures[measure].append(measure())
    first, second = (statistics.median(values[1:]) for values in figures.values())
    return first, second


def record_ratio(recorder: Recorder, proof: Proof, name: str, ours: float, theirs: float) -> None:
    """Record how our figure is to the other; on a GPU both must agree."""
    ratio, note = ours / theirs, f"{ours:,.0f}, its own {theirs:,.0f}"
    if proof.on_gpu:
        recorder.check(name, abs(ratio - 1) <= WITHIN, ratio, note=note)
    else:
        recorder.figure(name, ratio, note=note)


def timed(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """The seconds of a call: by two events of the GPU around many calls, else by the clock."""
    work()
    calls = 1
    while (taken := _timed(work, calls, device)) < seconds:
        calls *= 2
    return taken / calls


def _timed(work: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        work()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1e3


def by_command(recorder: Recorder, proof: Proof, folder: Path, medians: dict[str, float]) -> None:
    """Run `muster bench hosts`, whose figures are of one round in a process of its own."""
    said = muster(folder, "bench", "hosts", "--json", *(["--short"] if proof.short else []), proof=proof)
    figures = json.loads(said)["figures"][0]
    for figure in figures:
        name, value, unit = figure["name"], figure["value"], figure["unit"]
        note = f"{value / medians[name]:.3f} of the median" if name in medians and proof.on_gpu else ""
        recorder.figure(f"muster bench hosts, {name}", float(value), unit, note=note)


# -- collectives --


def collectives(recorder: Recorder, proof: Proof, folder: Path, program: Path | str) -> None:
    """Time all_gather at one rank, by Muster and by nccl-tests; `program` may be why there is none."""
    backend, last = ("nccl", LAST) if proof.on_gpu else ("gloo", "1M")
    words = ["all_gather", "--backend", backend, "--np", "1", "-b", FIRST, "-e", last, "-f", "4", "--json"]
    rows = json.loads(muster(folder, "bench", "collectives", *words, proof=proof))["rows"]
    ours = {row["size"]: row["algbw"] for row in rows}
    largest = max(ours)
    recorder.figure(
        f"bench collectives, all_gather of {largest / MIB:.0f} MiB", ours[largest], "GB/s", note=backend
    )
    wrong = sum(row["wrong"] for row in rows)
    recorder.check("bench collectives: wrong elements", wrong == 0, wrong)
    name = "bench collectives to nccl-tests"
    if isinstance(program, str):
        recorder.skip(name, program)
        return
    argv = [str(program), "-g", "1", "-b", FIRST, "-e", last, "-f", "4"]
    done = subprocess.run(
        argv, env=_with(folder / "nccl"), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True
    )
    theirs = of_nccl_tests(done.stdout)
    for size in sorted({*ours} & {*theirs} - {largest}):
        note = f"{ours[size]:,.0f}, its own {theirs[size]:,.0f}"
        recorder.figure(f"{name}, {size / MIB:.0f} MiB", ours[size] / theirs[size], note=note)
    record_ratio(recorder, proof, f"{name}, {largest / MIB:.0f} MiB", ours[largest], theirs[largest])


def of_nccl_tests(text: str) -> dict[int, float]:
    """The algbw out of place by size. The columns: size count type redop root time algbw busbw ..."""
    rows = re.findall(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+([\d.]+)\s", text, re.MULTILINE)
    return {int(size): float(bandwidth) for size, bandwidth in rows}


def start_build(folder: Path) -> subprocess.Popen[str] | str:
    """Begin to compile nccl-tests against the NCCL of torch's wheel; or why not."""
    source, nvcc, nccl = ROOT / ".gpu/nccl-tests", shutil.which("nvcc"), nccl_folder()
    if not (source / "src/all_gather.cu").is_file():
        return "there is no .gpu/nccl-tests"
    if nvcc is None or nccl is None or not shutil.which("make"):
        return "there is no NCCL of torch's wheel" if nccl is None else "there is no nvcc, or no make"
    home = folder / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):  # to link with, and to run with
        (home / "lib" / name).symlink_to(nccl / "lib/libnccl.so.2")
    cuda = next(path for path in (Path("/usr/local/cuda"), Path(nvcc).resolve().parents[1]) if path.is_dir())
    argv = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=COMMAND_SECONDS).stdout
    number = answer.split()[0].replace(".", "")  # torch would make a context, and no launch would get the GPU
    target = f"-gencode=arch=compute_{number},code=sm_{number}"
    program = folder / "build/all_gather_perf"
    argv = ["make", "-j", "8", "-C", str(source / "src"), "MPI=0", f"CUDA_HOME={cuda}", f"NCCL_HOME={home}"]
    argv += [f"NVCC_GENCODE={target}", f"BUILDDIR={program.parent}", str(program)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def built(building: subprocess.Popen[str] | str, folder: Path, proof: Proof) -> Path | str:
    """The program once it is compiled, or why there is none."""
    if isinstance(building, str):
        return building
    try:
        text, _ = building.communicate(timeout=BUILD_SECONDS * proof.patience)
    except subprocess.TimeoutExpired:
        building.kill()
        return f"nccl-tests was not compiled in {BUILD_SECONDS:.0f} s more"
    if building.returncode:
        return f"nccl-tests was not compiled: {text[-300:]}"
    return folder / "build/all_gather_perf"


def nccl_folder() -> Path | None:
    """The folder of the wheel nvidia-nccl, with its headers."""
    folders = [Path(path) / "nvidia/nccl" for path in sys.path]
    return next((folder for folder in folders if (folder / "include/nccl.h").is_file()), None)


def _with(nccl: Path) -> dict[str, str]:
    paths = [str(nccl / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}


def muster(folder: Path, *words: str, proof: Proof) -> str:
    """What a command prints, in the folder with the hosts file of this machine; `ValueError` if it fails."""
    done = subprocess.run(
        [MUSTER, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=COMMAND_SECONDS * proof.patience, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"muster {' '.join(words)}: exit status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout
