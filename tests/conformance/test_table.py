"""The table of the checks of tests/train/mpi_checks, on our backend and on Gloo."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.checks import OURS, names
from tests.conformance.supervisor import Outcome
from tests.conformance.table import table


def test_a_check_that_fails_is_named_with_its_backend() -> None:
    good = {name: Outcome("pass") for name in names()}
    bad = good | {"features.check_objects_are_sent": Outcome("hang")}
    (row,) = [line for line in table(good, bad) if "objects are sent" in line]
    count = sum(name.startswith("features.") for name in names())
    assert row.endswith(f"| {count} | {count} | {count - 1} | objects are sent (Gloo) |")


def test_what_is_left_out_exists() -> None:
    folder = Path(__file__).parents[1] / "train" / "mpi_checks"
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    assert [name for name in OURS if f"def {name}()" not in text] == []
