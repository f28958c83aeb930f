"""Launches for tests: a project whose program does not use Muster, and `muster` to start it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.load import hold
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
# For nodes that are containers of this machine: each sees all cores, which it shares with the others.
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
FAB = Path(sys.executable).parent / "fab"
MUSTER = Path(sys.executable).parent / "muster"

# A program that does not use Muster: it prints its rank and host, then does what its first argument says.
PROGRAM = """
import json, os, signal, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MUSTER_JOB", "GREETING")
env = {name: os.environ.get(name) for name in names}
print(json.dumps({"argv": sys.argv[1:], "env": env, "cwd": os.getcwd()}))
deed, who = (sys.argv[1:] + ["", ""])[:2]
if env["RANK"] == (who or "1"):
    if deed == "raise":
        raise ValueError("boom")
    if deed == "exit":
        sys.exit(3)
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
if deed in ("raise", "exit", "kill", "wait"):
    print("waiting", file=sys.stderr)
    time.sleep(300)
"""


class Driver(subprocess.Popen[str]):
    """`muster launch`, which ends with a test that fails: its program may wait for a signal of the test."""

    def __exit__(self, *error: Any) -> None:
        """End it after an exception; then wait for it, as Popen does."""
        if error[0] is not None and self.poll() is None:
            self.send_signal(signal.SIGINT)
            try:
                self.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        super().__exit__(*error)


@dataclass(frozen=True)
class Launched:
    """A launch that has ended."""

    status: int
    output: str
    seconds: float
    project: Path

    @property
    def job(self) -> str:
        match = re.search(r"job (\S+):", self.output)
        assert match, self.output
        return match.group(1)

    @property
    def folder(self) -> Path:
        return self.project / "runs" / self.job

    @property
    def result(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return loaded

    def said(self, rank: int, host: str = "localhost") -> dict[str, Any]:
        """Return the first line that a rank of PROGRAM printed, decoded."""
        log = self.folder / "logs" / f"rank-{rank:04d}@{host}.out"
        loaded: dict[str, Any] = json.loads(log.read_text().splitlines()[0])
        return loaded


@dataclass(frozen=True)
class Project:
    """A git tree with a program, hosts files and a home folder."""

    path: Path
    env: dict[str, str]
    program: Path = MUSTER
    """The program of its commands: fab has the same ones, and imports fabric first, for 0.35 s."""

    def start(self, *words: str) -> Driver:
        """Start `muster launch` with these words; SIGINT works even if the test runner ignores it.

        The ranks may take long to start: on a busy machine torchrun alone has taken longer than the default.
        """
        patient = () if "--start-timeout" in words else ("--start-timeout", "300")
        return Driver(
            [str(self.program), "launch", *patient, *words],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def launch(self, *words: str, timeout: float = 540) -> Launched:
        began = time.monotonic()
        with self.start(*words) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Launched(process.returncode, output, time.monotonic() - began, self.path)

    def muster(self, *words: str, timeout: float = 540) -> subprocess.CompletedProcess[str]:
        """Run any command to its end."""
        command = [str(self.program), *words]
        return subprocess.run(
            command, cwd=self.path, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def detach(self, *words: str) -> str:
        """Launch a detached job; return its id."""
        launched = self.launch("--detach", *words)
        assert launched.status == 0, launched.output
        return launched.job


def make_project(path: Path) -> Project:
    path.mkdir(parents=True)
    (path / "program.py").write_text(PROGRAM)
    (path / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
    (path / "hosts.txt").write_text("localhost slots=2\n")
    (path / ".gitignore").write_text("runs/\nignored.py\n")
    (path / "ignored.py").write_text("")
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    home = path.parent / "home"
    home.mkdir()
    return Project(path, {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)})


def processes_of(job: str) -> Sequence[str]:
    """Return every process on this machine that has the job's name in its environment or arguments."""
    commands = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            try:
                stat = (folder / "stat").read_text()
                environ, words = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            except OSError:  # the process has ended meanwhile
                continue
            if job.encode() in environ + words and stat.rpartition(")")[2].split()[0] not in "ZX":
                commands.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return commands


def wait_until_clean(job: str, seconds: float | None = None, *, excludes: float = math.inf) -> float:
    """Wait until no process of the job is left; returns how long that took.

    On a quiet machine that is at most `seconds`, if given, and less than the fallback that it `excludes`.
    """
    began = time.monotonic()
    wait_until(lambda: not processes_of(job), lambda: f"the end of {processes_of(job)}")
    took = time.monotonic() - began
    if seconds is not None:
        hold("until nothing of the job was left", took, seconds, excludes=excludes)
    return took
