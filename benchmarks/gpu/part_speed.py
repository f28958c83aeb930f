"""How fast the card is: by `muster bench`, and by cuBLAS, the driver's memcpy and nccl-tests themselves.

The first two are measured in turn, round by round, in this process; medians are compared. nccl-tests is
compiled from .gpu/nccl-tests, if it is there. On a CPU no ratio is checked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from muster.train.tools import host_speed
from muster.train.tools.host_speed import TYPES, HostConfig

from .libraries import gemm, memcpy
from .records import Proof, Recorder

ROOT = Path(__file__).parents[2]
MUSTER = Path(sys.executable).with_name("muster")
ROUNDS, SECONDS = 5, 0.3
WITHIN = 0.02
COMMAND_SECONDS = 60.0
MIB = 1 << 20
# Sizes of collectives: at the largest, a call takes more than a hundred times what its start takes.
FIRST, LAST = "1M", "4G"


def run(recorder: Recorder, proof: Proof) -> None:
    """Compare the figures of a host and of a collective; nccl-tests is compiled meanwhile."""
    with tempfile.TemporaryDirectory(prefix="muster-speed-") as folder:
        building = start_build(Path(folder)) if proof.on_gpu else None
        Path(folder, "hosts.txt").write_text("localhost slots=1\n", encoding="utf-8")
        with recorder.step("matrices"):
            medians = compare(recorder, proof)
        with recorder.step("muster bench hosts"):
            by_command(recorder, proof, Path(folder), medians)
        with recorder.step("muster bench collectives"):
            collectives(recorder, proof, Path(folder), building)


# -- matrices and copies --


def compare(recorder: Recorder, proof: Proof) -> dict[str, float]:
    """Compare each figure with the library's own; returns the medians of `bench hosts`, by their names."""
    device = torch.device("cuda", 0) if proof.on_gpu else torch.device("cpu")
    prefix, rows = ("gpu0 ", 8192) if proof.on_gpu else ("", 256)
    rounds, seconds = (2, 0.02) if proof.short else (ROUNDS, SECONDS)
    config = HostConfig(seconds=seconds, mebibytes=256 if proof.on_gpu else 16)
    own = {f"{prefix}memory copy": memcpy(config.mebibytes * MIB, device)}
    own |= {f"{prefix}matmul {name}": gemm(rows, dtype, device) for name, dtype in TYPES.items()}
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in own}
    for _ in range(rounds):
        copied = host_speed.copies(f"{prefix}memory copy", config, device)
        figures[copied.name][0].append(copied.value)
        figures[copied.name][1].append(
            2 * config.mebibytes * MIB / timed(own[copied.name], seconds, device) / 1e9
        )
        for figure in host_speed.matrices(prefix, config, device, rows):
            figures[figure.name][0].append(figure.value)
            figures[figure.name][1].append(2 * rows**3 / timed(own[figure.name], seconds, device) / 1e9)
    for name, (ours, theirs) in figures.items():
        ratio = statistics.median(ours) / statistics.median(theirs)
        note = f"{statistics.median(ours):,.0f}, the library's own {statistics.median(theirs):,.0f}"
        title = f"bench hosts, {name}, to the library's own"
        if proof.on_gpu:
            recorder.check(title, abs(ratio - 1) <= WITHIN, ratio, note=note)
        else:
            recorder.figure(title, ratio, note=note)
    return {name: statistics.median(ours) for name, (ours, _) in figures.items()}


def timed(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """The seconds of a call: by two events of the GPU around many calls, else by the clock."""
    work()
    calls = 1
    while (taken := _timed(work, calls, device)) < seconds / 2:
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


def collectives(
    recorder: Recorder, proof: Proof, folder: Path, building: subprocess.Popen[str] | str | None
) -> None:
    """Time all_reduce at one rank, by Muster and by nccl-tests."""
    backend, last = ("nccl", LAST) if proof.on_gpu else ("gloo", "1M")
    words = ["all_reduce", "--backend", backend, "--np", "1", "-b", FIRST, "-e", last, "-f", "4", "--json"]
    rows = json.loads(muster(folder, "bench", "collectives", *words, proof=proof))["rows"]
    ours = {row["size"]: row["out_of_place"]["algbw"] for row in rows}
    largest = max(ours)
    recorder.figure(
        f"bench collectives, all_reduce of {largest / MIB:.0f} MiB", ours[largest], "GB/s", note=backend
    )
    wrong = sum(row[place]["wrong"] or 0 for row in rows for place in ("out_of_place", "in_place"))
    recorder.check("bench collectives: wrong elements", wrong == 0, wrong)
    name = "bench collectives to nccl-tests"
    if isinstance(building, str) or building is None:
        recorder.skip(name, building or "without a GPU")
        return
    text, _ = building.communicate(timeout=COMMAND_SECONDS * proof.patience)
    if building.returncode:
        recorder.skip(name, f"nccl-tests was not compiled: {text[-300:]}")
        return
    argv = [str(folder / "build/all_reduce_perf"), "-g", "1", "-b", FIRST, "-e", last, "-f", "4"]
    theirs = of_nccl_tests(subprocess.run(
        argv, env=_with(folder / "nccl"), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True
    ).stdout)  # fmt: skip
    ratio = ours[largest] / theirs[largest]
    for size in sorted({*ours} & {*theirs}):
        note = f"{ours[size]:,.0f}, nccl-tests {theirs[size]:,.0f} GB/s"
        if size == largest:
            recorder.check(f"{name}, {size / MIB:.0f} MiB", abs(ratio - 1) <= WITHIN, ratio, note=note)
        else:
            recorder.figure(f"{name}, {size / MIB:.0f} MiB", ours[size] / theirs[size], note=note)


def of_nccl_tests(text: str) -> dict[int, float]:
    """The algbw out of place by size. The columns: size count type redop root time algbw busbw ..."""
    rows = re.findall(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+([\d.]+)\s", text, re.MULTILINE)
    return {int(size): float(bandwidth) for size, bandwidth in rows}


def start_build(folder: Path) -> subprocess.Popen[str] | str:
    """Begin to compile nccl-tests against the NCCL of torch's wheel; or why not."""
    source, nvcc, nccl = ROOT / ".gpu/nccl-tests", shutil.which("nvcc"), nccl_folder()
    if not (source / "src/all_reduce.cu").is_file():
        return "there is no .gpu/nccl-tests"
    if nvcc is None or nccl is None or not shutil.which("make"):
        return "there is no NCCL of torch's wheel" if nccl is None else "there is no nvcc, or no make"
    home = folder / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):  # to link with, and to run with
        (home / "lib" / name).symlink_to(nccl / "lib/libnccl.so.2")
    cuda = next(path for path in (Path("/usr/local/cuda"), Path(nvcc).resolve().parents[1]) if path.is_dir())
    major, minor = torch.cuda.get_device_capability()
    target = f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}"
    program = folder / "build/all_reduce_perf"
    argv = ["make", "-j", "8", "-C", str(source / "src"), "MPI=0", f"CUDA_HOME={cuda}", f"NCCL_HOME={home}"]
    argv += [f"NVCC_GENCODE={target}", f"BUILDDIR={program.parent}", str(program)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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
