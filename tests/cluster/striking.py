"""Strikes a running job and measures the outcome."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.faults import PROGRAM, STRIKE, Fault, Struck
from tests.launching import Project
from tests.load import hold
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

# Seconds between two looks at the nodes, each of which starts three clients of the engine. The figures of
# docs/faults.md need more of them.
LOOK = 0.05 if os.environ.get("MUSTER_FAULTS_RECORD") else 0.2


@dataclass(frozen=True)
class Outcome:
    """The outcome of a fault. Seconds are from the fault; no verdict: its driver is gone."""

    verdict: float | None
    clean: float
    status: int
    named: str
    output: str


def suffer(fault: Fault, launcher: str, project: Project, cluster: Cluster) -> Outcome:
    """Launch, strike when every rank is ready, and measure until nothing is left; the cluster is repaired."""
    (project.path / "faulty.py").write_text(PROGRAM)
    for node in cluster.nodes:
        cluster.exec(node, ["rm", "-f", STRIKE])
    words = ("--launcher", launcher, "--script", "faulty.py", f"--args={fault.deed}", *fault.words)
    with project.start(*words) as driver, ThreadPoolExecutor(1) as pool:
        read_until(driver, "ready", 6)
        try:
            began = time.time()
            watch = Watch(driver)
            struck_at = fault.strike(Struck(cluster, driver))
            began = struck_at if isinstance(struck_at, float) else began
            reachable = [node for node in cluster.nodes if node not in fault.unreachable]
            clean = pool.submit(clean_at, cluster, reachable)
            verdict, output = watch.ended()
            cleaned = clean.result()
        finally:
            driver.kill()
            fault.mend(cluster)
    clean_at(cluster, cluster.nodes)
    if struck := re.findall(r"struck at ([\d.]+)", output):
        began = float(struck[-1])  # the nodes are containers: they have this machine's clock
    named = re.search(r"^(?:FAILED  |STOPPED by )(.*)$", output, re.MULTILINE)
    return Outcome(
        verdict - began if named else None,
        cleaned - began,
        driver.returncode,
        named[1] if named else "",
        output,
    )


class Watch:
    """Reads what a driver prints, and when its verdict came."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        self._driver = driver
        self._lines: list[str] = []
        self._verdict = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def ended(self) -> tuple[float, str]:
        """When the verdict came, and everything that was printed."""
        self._driver.wait(PATIENCE)
        self._thread.join(PATIENCE)
        return self._verdict, "".join(self._lines)

    def _read(self) -> None:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            self._lines.append(line)
            if line.startswith(("FAILED", "STOPPED")):
                self._verdict = time.time()


def clean_at(cluster: Cluster, nodes: Sequence[str], seconds: float | None = None) -> float:
    """Wait until nothing of a job is left on the nodes, which takes at most so many seconds; returns when."""
    began = time.monotonic()
    containers = [cluster.container(node) for node in nodes]
    with ThreadPoolExecutor(len(nodes)) as pool:

        def left() -> list[str]:
            return [one.args for found in pool.map(cluster.glance, containers) for one in found]

        wait_until(lambda: not left(), lambda: f"the end of {left()}", pause=LOOK)
    if seconds is not None:
        hold("until nothing was left on the nodes", time.monotonic() - began, seconds)
    return time.time()
