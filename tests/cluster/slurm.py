"""A real Slurm for tests: three containers with slurmctld, slurmd and munge (docker/slurm), on one home."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NODES = ("slurm1", "slurm2", "slurm3")
FILES = (ROOT / "docker" / "slurm" / "compose.yaml", ROOT / "tests" / "cluster" / "quiet-slurm.yaml")
COMPOSE = ("docker", "compose", *(word for file in FILES for word in ("--file", str(file))))
FOLDER = "/home/muster/project"
# Ranks that wait. By its first argument: `save` ends with 75 at SIGUSR1, and has nothing left to do when it
# runs again; `deaf` ignores that signal; rank 2 of `fail` fails at once.
WAITS = """
import os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["MUSTER_OUT"], "saved")
def save(number, frame):
    saved.touch()
    sys.exit(75)
signal.signal(signal.SIGUSR1, signal.SIG_IGN if sys.argv[1] == "deaf" else save)
rank, restart = os.environ["RANK"], os.environ.get("MUSTER_RESTART")
print("rank", rank, "restart", restart, "goes on" if saved.exists() else "begins", flush=True)
if sys.argv[1] == "fail" and rank == "2":
    sys.exit(3)
if not (sys.argv[1] == "save" and saved.exists()):
    time.sleep(600)
"""


@dataclass(frozen=True)
class Slurm:
    """A Slurm cluster in containers; slurm1 is its login node."""

    env: dict[str, str]

    def compose(self, *words: str) -> str:
        done = subprocess.run(
            [*COMPOSE, *words], env=self.env, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def argv(
        self, *words: str, node: str = "slurm1", folder: str = FOLDER, user: str = "muster"
    ) -> list[str]:
        # Compose would take twice the processor time of the engine, hundreds of times.
        container = f"{self.env['COMPOSE_PROJECT_NAME']}-{node}-1"
        return ["docker", "exec", "--interactive", "--user", user, "--workdir", folder, container, *words]

    def run(
        self, *words: str, node: str = "slurm1", folder: str = FOLDER, user: str = "muster"
    ) -> subprocess.CompletedProcess[str]:
        """Run words on the login node, or another one, as its user."""
        return subprocess.run(
            self.argv(*words, node=node, folder=folder, user=user),
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start words on the login node; their output is one stream."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.argv(*words),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def submit(self, words: str, *program: str, name: str = "program.py") -> tuple[str, str]:
        """Submit a program as a batch job; returns the job's id and Slurm's number of it."""
        done = self.run("muster", "launch", "--slurm", words, "--detach", name, *program)
        match = re.search(r"job (\S+) is Slurm's job (\d+)", done.stdout)
        assert match, done.stdout + done.stderr
        assert done.returncode == 0, done.stderr
        return match[1], match[2]

    def until_printed(self, job: str, text: str, ranks: int) -> None:
        """Wait until so many ranks have printed the text; a job that is queued again takes a minute."""

        def logs() -> str:
            return self.run("muster", "logs", job).stdout

        wait_until(lambda: logs().count(text) == ranks, lambda: f"{text} of all: {logs()}", patience=150.0)

    def attached(self, job: str) -> tuple[int, str]:
        """The exit status of a job and what it has printed, at its end."""
        done = self.run("muster", "attach", job)
        return done.returncode, done.stdout

    def jobs(self) -> list[str]:
        """The numbers of Slurm's jobs, those that end included."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def left(self, nodes: Sequence[str] = NODES) -> str:
        """The processes of launches that are still on these nodes."""
        pattern = "[p]rogram.py|[m]uster agent|[p]rted|[b]atch_main"
        return "".join(self.run("pgrep", "-fa", pattern, node=node, folder="/").stdout for node in nodes)

    def is_idle(self) -> bool:
        """Whether no job is left, and all nodes can take another."""
        states = self.run("sinfo", "--noheader", "--partition=main", "--Node", "--format=%T").stdout.split()
        return not self.jobs() and states == ["idle"] * len(NODES)

    def until_idle(self) -> None:
        """Wait until every node can take a job."""

        def states() -> str:
            asked = (("squeue",), ("sinfo", "--partition=main", "--Node", "--format=%N %T %E"))
            return "idle nodes:\n" + "".join(self.run(*words).stdout for words in asked)

        wait_until(self.is_idle, states)


@contextlib.contextmanager
def slurm_cluster(name: str, **programs: str) -> Iterator[Slurm]:
    """A Slurm cluster whose project folder has these programs, by their names without `.py`."""
    made = Slurm({**os.environ, "COMPOSE_PROJECT_NAME": name})
    try:
        made.compose("up", "--detach", "--build")
        wait_until(lambda: made.run("mkdir", "-p", FOLDER, folder="/").returncode == 0, "the nodes' home")
        for program, text in programs.items():
            argv = made.argv("sh", "-c", f"cat > {program}.py")
            subprocess.run(argv, env=made.env, input=text, text=True, timeout=60, check=True)
        made.until_idle()
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "1")
