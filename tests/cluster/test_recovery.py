"""After a fault a job trains on without help; benchmarks/recovery.py records how long that takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.recoveries import PROGRAM, READY, RECOVERIES, recovered, torchruns_own
from tests.cluster.test_faults import RECORD, record
from tests.launching import ONE_THREAD, Project
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

FAULTS = [
    pytest.param(name, launcher, id=f"{name}-{launcher}")
    for name in RECOVERIES
    for launcher in ("mpirun", "torchrun")
]


def preloaded(project: Project) -> list[str]:
    """What each host says of the imports for the next attempt."""
    lines = [path.read_text() for path in (project.path / "runs").glob("*/events.jsonl")]
    events = [json.loads(line) for line in "".join(lines).splitlines()]
    return [event["text"] for event in events if event["type"] == "host.preloaded"]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "launcher"), FAULTS)
def test_a_job_trains_on_after_a_fault(name: str, launcher: str, project: Project, cluster: Cluster) -> None:
    recovery = RECOVERIES[name]
    (project.path / "recovers.py").write_text(PROGRAM)
    words = ("--launcher", launcher, "--script", "recovers.py", "--max-restarts", "1", "--min-hosts", "2")
    with project.start(*words, *ONE_THREAD, *recovery.words) as driver:
        try:
            read_until(driver, READY, 1)
            if "--preload" in recovery.words:
                wait_until(lambda: len(preloaded(project)) == 3, "the imports on three hosts")
                said = preloaded(project)
                assert all(text.startswith("the next attempt starts ") for text in said), said
            struck_at = recovery.strike(cluster)
            assert driver.stdout is not None
            output = driver.stdout.read()
            driver.wait(PATIENCE)
        finally:
            driver.kill()
            if recovery.struck:
                cluster.start(recovery.struck)
    job = recovered(output, struck_at, driver.returncode)
    (run,) = (project.path / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    parts = {part["name"]: part["ended"] - part["began"] for part in result["timings"]}
    record(name=name, launcher=launcher, recovered=job.seconds, ranks=job.ranks, parts=parts)
    assert job.seconds is not None, job.output
    assert (job.ranks, job.status) == (recovery.ranks, 0), job.output


@pytest.mark.soak
@pytest.mark.skipif(not RECORD, reason="a measurement of torchrun alone")
@pytest.mark.parametrize("number", range(2))
def test_torchruns_own_restart(number: int, tmp_path: Path) -> None:
    job = torchruns_own(tmp_path)
    record(name="rank", launcher="torchrun alone", recovered=job.seconds, ranks=job.ranks, parts={})
    assert job.output, "the measurement counts, also that of a restart that fails"
