"""Runs phases for real, and asks about their ranks as the driver of a job does."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster.deploy.core.connect.cluster import Cluster, expect_ranks
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.why.gather import gather, gather_pace
from muster.deploy.features.why.lateness import Pace
from muster.deploy.features.why.messages import Straggler
from muster.deploy.features.why.stragglers import LateScores, Surroundings, latest, stragglers
from tests.launching import Project
from tests.stragglers.table import PROGRAM, Phase
from tests.waiting import read_until

LOOKS = 12
"""How often the stacks are read, to learn where a late rank is, unlike the others."""


@dataclass
class Running:
    """A job of three ranks that goes through phases."""

    job: str
    driver: subprocess.Popen[str]
    cluster: Cluster
    go: Path
    phase: int = 0
    said: list[str] = field(default_factory=list)

    def paces(self) -> Pace | None:
        """The pace after thirty steps of the next phase."""
        read_until(self.driver, f"phase {self.phase}", 1)
        return latest(LateScores().add(gather_pace(self.job, self.cluster.channels).paces))

    def stragglers(self) -> list[Straggler]:
        """The ranks that are late in this phase, with their causes."""
        channels = self.cluster.channels
        gather_pace(self.job, channels)
        time.sleep(1)  # its counters become rates
        gathered = gather_pace(self.job, channels)
        looks = [gather(self.job, channels)[0] for _ in range(LOOKS)]
        pace = latest(LateScores().add(gathered.paces))
        return stragglers(pace, Surroundings(gathered.pressures, {}, looks))

    def next(self) -> None:
        """Have the job go on to the next phase."""
        (self.go / f"go-{self.phase}").touch()
        self.phase += 1


@contextlib.contextmanager
def running(project: Project, phases: Sequence[Phase], backend: str = "gloo") -> Iterator[Running]:
    """Launch the phases on this machine."""
    shutil.copy(PROGRAM, project.path)
    (project.path / "hosts.txt").write_text("localhost slots=3\n")
    launcher = "mpirun" if backend == "mpi" else "torchrun"
    settings = {
        "PHASES": ",".join(phase.word for phase in phases),
        "BACKEND": backend,
        "GO": str(project.path),
    }
    environment = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    with project.start("--launcher", launcher, *environment, "--script", PROGRAM.name) as driver:
        try:
            job = re.search(r"job (\S+):", "".join(read_until(driver, "job ", 1)))
            assert job
            os.environ["HOME"] = project.env["HOME"]
            pipe = LocalPipe(str(Path(sys.executable)))
            with contextlib.closing(
                Cluster(hostfile.parse("localhost slots=3"), lambda host: pipe, facts=False)
            ) as cluster:
                cluster.connect()
                expect_ranks(cluster.channels, dict.fromkeys(range(3), "localhost"))
                yield Running(job[1], driver, cluster, project.path)
        finally:
            driver.send_signal(signal.SIGINT)
            driver.communicate(timeout=120)
