"""Launches of a program on this machine that hangs or fails, and what is on the GPU meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .records import Proof, Recorder

MUSTER = str(Path(sys.executable).parent / "muster")
PROGRAM = Path(__file__).with_name("fault_program.py")
START_SECONDS, COMMAND_SECONDS, END_SECONDS = 45.0, 30.0, 40.0
KERNEL_SECONDS = 60.0
"""Of a kernel. It must outlast the questions about its rank."""
POLL_SECONDS = 0.05


@dataclass
class Launch:
    """A launch that runs, or has ended with `status` and `output`; `folder`: that of its project."""

    process: subprocess.Popen[str]
    folder: Path
    patience: float = 1.0
    asked: str = ""
    status: int | None = None
    output: str = ""

    @property
    def job(self) -> str:
        """Its id: the name of the only folder in its runs."""
        return next((self.folder / "runs").iterdir()).name

    @property
    def place(self) -> Path:
        """The folder of the job on this host."""
        return Path.home() / ".muster" / "jobs" / self.job

    def wait(self) -> str:
        """Wait for its end; returns what it printed."""
        self.output, _ = self.process.communicate(timeout=END_SECONDS * self.patience)
        self.status = self.process.returncode
        return self.output

    def pid(self, rank: int = 0) -> int:
        """The process of a rank, once it has begun its fault."""
        runs = self.folder / "runs"
        began = time.monotonic()
        while not (runs.is_dir() and (path := self.place / "out" / f"ready-{rank}").exists()):
            if self.process.poll() is not None or time.monotonic() - began > START_SECONDS * self.patience:
                raise TimeoutError(f"rank {rank} has not begun")
            time.sleep(POLL_SECONDS)
        return int(path.read_text())

    def ask(self, *words: str) -> str:
        """What a command prints about the job."""
        argv = [MUSTER, words[0], self.job, *words[1:]]
        done = subprocess.run(
            argv, cwd=self.folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=COMMAND_SECONDS * self.patience, check=False,
        )  # fmt: skip
        self.asked += f"$ muster {' '.join(words)}\n{done.stderr}{done.stdout}\n"
        return done.stdout


@dataclass(frozen=True)
class Faults:
    """The folder of this part's projects, outside of the checkout, whose hosts file they must not find."""

    proof: Proof
    recorder: Recorder
    folder: Path

    @contextmanager
    def launch(self, fault: str, *options: str, ranks: int = 1) -> Iterator[Launch]:
        """Launch a fault; its ranks are ended at the end of the block. It leases no GPU."""
        project = Path(tempfile.mkdtemp(prefix=f"{fault}-", dir=self.folder))
        shutil.copy(PROGRAM, project / "train.py")
        seconds = KERNEL_SECONDS * (1.0 if self.proof.on_gpu else self.proof.patience)
        words = ("train.py", fault, self.proof.device, str(seconds))
        shared = () if "CUDA_VISIBLE_DEVICES=" in options else ("--gpus", "0")
        process = subprocess.Popen(
            [MUSTER, "launch", "--np", str(ranks), *shared, *options, *words], cwd=project, env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        launch = Launch(process, project, self.proof.patience)
        try:
            yield launch
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            if launch.status is None:
                launch.wait()
            text = f"{launch.output}\n{launch.asked}"
            (self.proof.out / f"faults-{project.name}.txt").write_text(text, encoding="utf-8")


def environment() -> dict[str, str]:
    """That of this process, with one thread for each rank."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Card:
    """The GPU, as nvidia-smi shows it; without one, the processes of a job stand for those on it."""

    proof: Proof

    def memory(self) -> int:
        """MiB in use."""
        return int(_smi("--query-gpu=memory.used").split()[0]) if self.proof.on_gpu else 0

    def users(self, place: Path) -> list[int]:
        """The processes on the GPU, or of the job in this folder."""
        if self.proof.on_gpu:
            return [int(pid) for pid in _smi("--query-compute-apps=pid").split() if pid.isdigit()]
        processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [int(process.name) for process in processes if _is_in(process, place)]


def _smi(query: str) -> str:
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=COMMAND_SECONDS).stdout


def _is_in(process: Path, place: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(place)
    except OSError:
        return False
