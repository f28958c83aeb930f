"""What breaks before or while a job runs: a fault is noticed, named and leaves nothing, in bounded time."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.deploy.core.agent.supervisor import SILENCE_SECONDS
from tests.cluster.faults import CASES, FAULTS, IN_EVERY_TEST, QUIET, TESTED
from tests.cluster.start_faults import IN_EVERY_TEST as STARTS_IN_EVERY_TEST
from tests.cluster.start_faults import START_FAULTS
from tests.cluster.striking import clean_at, suffer
from tests.launching import Project
from tests.load import hold

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


RECORD = os.environ.get("MUSTER_FAULTS_RECORD")  # of benchmarks/faults.py


def record(**measured: object) -> None:
    if RECORD:
        with Path(RECORD).open("a") as file:
            file.write(json.dumps({**measured, "load": os.getloadavg()[0]}) + "\n")


def case(*words: str, always: bool, quiet: bool = False) -> object:
    """A row of a table; `make soak` runs them all and holds their limits, `quiet` with nothing beside."""
    marks = [pytest.mark.timed] if always else [pytest.mark.soak, *([pytest.mark.timed] if quiet else [])]
    return pytest.param(*words, marks=marks, id="-".join(words))


@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        case(*words, always=words in IN_EVERY_TEST, quiet=words in QUIET)
        for words in (CASES if RECORD else TESTED)
    ],
)
def test_a_fault_is_named_in_time(name: str, launcher: str, project: Project, cluster: Cluster) -> None:
    fault = FAULTS[name]
    # An agent that merely heard nothing more ends its part of the job as well, only later.
    excludes = SILENCE_SECONDS if fault.within < SILENCE_SECONDS else math.inf
    outcome = suffer(fault, launcher, project, cluster)
    record(name=name, launcher=launcher, verdict=outcome.verdict, clean=outcome.clean, named=outcome.named)
    assert outcome.status == fault.status, outcome.output
    if fault.says:
        assert f"{outcome.named}\n".startswith(fault.says), outcome.output
        assert outcome.verdict is not None
        hold(f"{name}-{launcher}: verdict", outcome.verdict, fault.within, excludes=excludes)
    hold(f"{name}-{launcher}: clean", outcome.clean, fault.within, excludes=excludes)


@pytest.mark.parametrize("name", [case(name, always=name in STARTS_IN_EVERY_TEST) for name in START_FAULTS])
def test_a_wrong_start_is_named_in_time(name: str, project: Project, cluster: Cluster) -> None:
    fault = START_FAULTS[name]
    (project.path / "hosts.txt").write_text(fault.hosts)
    with fault.there(project, cluster):
        done = project.launch("--script", "program.py", *fault.words)
    said = re.search(f"{fault.says}.*", done.output, re.MULTILINE)
    record(
        name=name,
        launcher="mpirun",
        verdict=done.seconds,
        clean=None,
        named=said[0].removeprefix("FAILED  ") if said else "",
    )
    assert done.status == fault.status, done.output
    assert said, done.output
    assert "Traceback" not in done.output
    hold(f"{name}: end", done.seconds, fault.within)
    clean_at(cluster, cluster.nodes, 5.0)
