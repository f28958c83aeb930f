"""`muster launch --gate` on three containers, whose figures the test sets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.launching import ONE_THREAD, Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

pytestmark = pytest.mark.soak

SITE = "$(python3 -m site --user-site)"
# The clock of the measuring programs advances by the same step at each reading: their figures have no noise.
STEPS = """
import itertools, sys, time
if "muster.train.tools.gate" in sys.orig_argv:
    real, readings = time.perf_counter, itertools.count()
    def stepping():
        measures = sys._getframe(1).f_globals.get("__file__", "").endswith(("links.py", "host_speed.py"))
        return next(readings) * {step} if measures else real()
    time.perf_counter = stepping
"""
STEP, SLOW_STEP = 0.1, 0.5
Plant = Callable[[str, float], None]


@pytest.fixture
def plant(cluster: Cluster) -> Iterator[Plant]:
    """Sets the step of the clock of a node."""

    def steps(node: str, step: float) -> None:
        text = STEPS.format(step=step)
        done = cluster.ssh(node, f"mkdir -p {SITE} && cat > {SITE}/usercustomize.py <<'END'\n{text}\nEND")
        assert done.returncode == 0, done.stderr

    for node in cluster.nodes:
        steps(node, STEP)
    yield steps
    for node in cluster.nodes:
        cluster.ssh(node, f"rm -rf {SITE}/usercustomize.py {SITE}/__pycache__")
    for kept in (cluster.muster_dir / "bench").glob("gate-*.json"):
        kept.unlink()


def test_a_slow_host_is_drained_and_a_spare_host_takes_its_place(project: Project, plant: Plant) -> None:
    plant("node2", SLOW_STEP)
    ran = project.launch(*ONE_THREAD, "--gate", "1", "--np", "4", "program.py")
    assert ran.status == 0, ran.output
    assert ran.output.count("--gate: node2: ") == 1, ran.output
    assert "note: --gate measures again: node2: " in ran.output
    assert "note: --gate: node[1,3] passed after" in ran.output
    assert re.findall(r"^ +(node\d): ranks", ran.output, re.MULTILINE) == ["node1", "node3"]
    (entry,) = json.loads((project.path / "drained.json").read_text())
    assert entry["host"] == "node2"
    assert entry["why"].startswith("--gate: ")

    again = project.launch("--np", "6", "program.py")
    assert again.status != 0
    assert "node2 is drained since" in again.output


def test_a_job_that_needs_every_host_does_not_start(project: Project, plant: Plant) -> None:
    plant("node3", SLOW_STEP)
    ran = project.launch(*ONE_THREAD, "--gate", "1", "program.py")
    assert ran.status == 3, ran.output
    assert "node3: it fails --gate: " in ran.output
    assert "waiting" not in ran.output
    project.fab("hosts", "undrain", "node3")

    plant("node3", STEP)
    ran = project.launch(*ONE_THREAD, "--gate", "1", "program.py")
    assert ran.status == 0, ran.output
    assert "measures again" not in ran.output
    assert "note: --gate: node[1-3] passed after" in ran.output


def test_a_host_that_became_slower_than_its_baseline_fails(project: Project, plant: Plant) -> None:
    words = (*ONE_THREAD, "--gate", "1", "--include", "node1", "--np", "1", "program.py")
    assert project.launch(*words).status == 0
    plant("node1", SLOW_STEP)
    ran = project.launch(*words)
    assert ran.status == 3, ran.output
    assert "node1: it fails --gate: memory copy " in ran.output
    assert "; it had " in ran.output
