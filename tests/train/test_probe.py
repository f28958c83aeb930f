"""The measured support table: a cell that hangs, dies or goes out of step costs only itself."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks.tools import probe_cells as cells
from benchmarks.tools import probe_children as apart
from benchmarks.tools.probe_cells import Cell
from benchmarks.tools.probe_children import measure_apart
from benchmarks.tools.probe_table import as_json, as_text
from tests.train.forked import on_hosts
from tests.train.probe_tables import GLOO, OURS, documented, told

if TYPE_CHECKING:
    from muster.train.job.group import Job
    from tests.train.conftest import Launch

PATIENCE = timedelta(
    seconds=4
)  # a good cell takes milliseconds, but on a busy machine it gets no core at once
GOOD, HANGING, DYING, ODD = (
    Cell(f"all_reduce {name}", "f32", "cpu") for name in ("SUM", "MIN", "MAX", "AVG")
)


def measure_badly(cell: Cell, rank: int, size: int, local_rank: int) -> tuple[str, str]:
    """Measure as the probe does, but for three cells that go wrong on one rank."""
    if cell == HANGING and rank == 0:
        time.sleep(3600)
    if cell == DYING and rank == 1:
        os.kill(os.getpid(), signal.SIGABRT)
    if cell == ODD and rank == 1:
        return "refused", "not today"
    return cells.measure(cell, rank, size, local_rank)


@pytest.mark.soak
def test_a_cell_that_goes_wrong_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "STARTING", timedelta(seconds=200))
    order = [GOOD, HANGING, GOOD, DYING, ODD, GOOD]

    def run(group: Job) -> tuple[list[tuple[str, str]], str, str]:
        measured = measure_apart(group, "gloo", order, patience=PATIENCE, measure=measure_badly)
        assert [one.cell for one in measured] == order
        tables = {"gloo": measured}
        return [(one.outcome, one.said) for one in measured], as_text(group, tables), as_json(group, tables)

    for outcomes, text, data in on_hosts(tmp_path, 2, run):
        assert [outcome for outcome, _ in outcomes] == ["right", "hangs", "right", "dies", "hangs", "right"]
        assert outcomes[3][1] == "rank 1: killed by signal 6"
        assert "all_reduce MIN of f32: hangs: no answer within 4 s" in text
        assert len(json.loads(data)["cells"]) == len(order)


def test_every_operation_is_measured_with_every_type_on_every_device() -> None:
    every = cells.all_cells(["cpu", "cuda"])
    assert len(set(every)) == len(every)
    assert {cell.dtype for cell in every if cell.operation == "broadcast"} == set(cells.DTYPES)
    assert {cell.device for cell in every} == {"cpu", "cuda"}


@pytest.mark.parametrize("table", [GLOO, OURS])
def test_the_tables_of_the_document_are_of_this_torch(table: str) -> None:
    assert f"torch {torch.__version__.partition('+')[0]}," in table, "measure again, and write a new table"


# What torch's own backend does changes with the version of torch alone, which the test above holds.
@pytest.mark.parametrize(
    ("launcher", "backend", "table"),
    [pytest.param("torchrun", "gloo", GLOO, marks=pytest.mark.soak), ("mpirun", "mpi", OURS)],
)
def test_this_machine_has_the_table_of_the_document(
    launch: Launch, launcher: str, backend: str, table: str
) -> None:
    job = launch(launcher, 2, "-m", "benchmarks.tools.probe", "--json", "--backend", backend)
    assert job.status == 0, job.stderr
    assert told(job.stdout) == documented(table)


@pytest.mark.soak
def test_one_rank_alone_is_probed_too(launch: Launch) -> None:
    job = launch("single", 1, "-m", "benchmarks.tools.probe", "--json")
    assert job.status == 0, job.stderr
    answers = told(job.stdout)
    assert {answers["all_reduce SUM", dtype] for dtype in ("i64", "f32", "f64")} == {"+"}
    assert set(answers.values()) == {"+", "-"}
