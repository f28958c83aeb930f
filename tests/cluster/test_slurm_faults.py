"""Every fault that Slurm's hosts can have, under Muster's launchers (tests/cluster/slurm_faults.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster.slurm import Slurm, slurm_cluster
from tests.cluster.slurm_faults import FAULTS, PROGRAM, WAYS, outcome_of
from tests.load import hold
from tests.parallel import NUMBER

pytestmark = [pytest.mark.soak, pytest.mark.timed]  # nothing beside them: a lost node takes 15 of its 20 s


@pytest.fixture(scope="module")
def slurm(node_image: None) -> Iterator[Slurm]:
    with slurm_cluster(f"muster-slurm-test{NUMBER or ''}", program=PROGRAM) as made:
        yield made


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("muster")])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_nothing_is_left(slurm: Slurm, name: str, way: str) -> None:
    fault = FAULTS[name]
    outcome = outcome_of(slurm, fault, way, patience=3 * fault.within)  # load stretches a limit twofold
    assert outcome.seconds is not None, outcome
    assert re.search(fault.says, outcome.said), outcome
    assert (outcome.status, outcome.left) == (fault.status, ""), outcome
    hold(f"{fault.title}, {way}", outcome.seconds, fault.within)
