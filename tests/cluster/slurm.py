"""A real Slurm for tests: three containers with slurmctld, slurmd and munge (docker/slurm), on one home."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NODES = ("slurm1", "slurm2", "slurm3")
COMPOSE = ("docker", "compose", "--file", str(ROOT / "docker" / "slurm" / "compose.yaml"))
FOLDER = "/home/muster/project"


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
        place = ["exec", "--no-TTY", "--user", user, "--workdir", folder, node]
        return [*COMPOSE, *place, *words]

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
        wait_until(self.is_idle, "nodes of Slurm that are idle")


@contextlib.contextmanager
def slurm_cluster(name: str, **programs: str) -> Iterator[Slurm]:
    """A Slurm cluster whose project folder has these programs, by their names without `.py`."""
    made = Slurm({**os.environ, "COMPOSE_PROJECT_NAME": name})
    try:
        made.compose("up", "--detach", "--wait", "--build")
        made.run("mkdir", "-p", FOLDER, folder="/")
        for program, text in programs.items():
            argv = made.argv("sh", "-c", f"cat > {program}.py")
            subprocess.run(argv, env=made.env, input=text, text=True, timeout=60, check=True)
        made.until_idle()
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "1")
