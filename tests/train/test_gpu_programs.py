"""The jobs of the GPU proof about ranks and examples, in host memory: on a GPU only kernels are new."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.gpu import part_examples, part_mpi
from benchmarks.gpu.jobs import found_in
from benchmarks.gpu.records import Proof, Recorder

if TYPE_CHECKING:
    from tests.train.conftest import Launch


@pytest.mark.soak
def test_two_ranks_find_right_values(launch: Launch) -> None:
    job = launch("mpirun", 2, str(part_mpi.RANKS), "mpi", "cpu")
    assert job.status == 0, job.stderr
    first, second = (told["wrong"] for told in found_in(job.stdout))
    assert set(first.values()) == set(second.values()) == {""}
    assert {"all_reduce", "receives_into_memory_in_use", "a_future_with_a_callback"} <= set(first)


@pytest.mark.soak
@pytest.mark.parametrize("part", [part_mpi, part_examples])
def test_a_part_passes(tmp_path: Path, part: object) -> None:
    recorder = Recorder(tmp_path / "records.jsonl")
    getattr(part, "run")(recorder, Proof(tmp_path, "cpu", short=True))  # noqa: B009 - it is a module
    assert [record for record in recorder.records if record.outcome == "fail"] == []
    assert sum(record.outcome == "pass" for record in recorder.records) > 5
