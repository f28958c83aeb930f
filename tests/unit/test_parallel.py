"""Which tests share a worker and a cluster, in make test and in make soak."""

from __future__ import annotations

import pytest

from tests import load
from tests.parallel import LIFE, LONGEST, TESTS, group, number, place

FILES = (
    *("cluster/test_faults.py", "cluster/test_slurm_jobs.py"),
    *("ansible/test_setup.py", "ansible/test_clocks.py"),
)


def groups() -> list[str]:
    return [group(f"tests/{file}::test_it[some::words]") for file in (*FILES, "unit/test_why.py")]


def test_in_make_test_what_shares_hosts_shares_a_worker_and_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SOAK", False)
    assert groups() == ["cluster", "slurm", "ansible", "ansible", "unit/test_why.py"]
    assert number({"PYTEST_XDIST_WORKER": "gw2"}) == 0
    assert number({"PYTEST_XDIST_WORKER": "gw2", "MUSTER_TEST_CLUSTER": "3"}) == 3


def test_in_make_soak_each_worker_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SOAK", True)
    first, second, *hosts, last = groups()
    assert (first, second, last) == (*FILES[:2], "unit/test_why.py")
    assert len({*hosts}) == 1
    assert number({"PYTEST_XDIST_WORKER": "gw2", "MUSTER_TEST_CLUSTER": "3"}) == 5
    assert number({}) == 0  # the second part, which has no workers
    assert place(TESTS / LONGEST[0]) < place(TESTS / LONGEST[1]) < place(TESTS / "cluster/test_image.py")


def test_the_files_that_are_named_are_there() -> None:
    assert [file for file in LONGEST if not (TESTS / file).exists()] == []
    assert [stem for stem in LIFE if not (TESTS / "ansible" / f"{stem}.py").exists()] == []


def test_make_soak_leaves_out_no_folder_that_has_tests_for_it() -> None:
    """Each of its workers would import the 4200 tests of unit/ to find none."""
    marker = "mark." + "soak"
    assert [path.name for path in (TESTS / "unit").rglob("*.py") if marker in path.read_text()] == []
