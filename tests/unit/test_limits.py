"""The rules of the tests themselves: how far a limit stretches, and what may be skipped."""

from __future__ import annotations

import time

import pytest

from tests import load
from tests.conftest import HERE, refused
from tests.parallel import LIFE, LONGEST, TESTS, group, number, place
from tests.waiting import wait_until


def figures() -> list[load.Figure]:
    """What was taken; taken away, so that it is not shown among the figures of real limits."""
    found = list(load.taken)
    load.taken.clear()
    return found


def at_a_load_of(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (value, value, value))
    monkeypatch.setattr("os.cpu_count", lambda: 2)


@pytest.mark.parametrize(("busy", "bound"), [(0.0, 5.0), (4.0, 5.0), (6.0, 7.5), (8.0, 10.0), (400.0, 10.0)])
def test_a_limit_stretches_twofold(monkeypatch: pytest.MonkeyPatch, busy: float, bound: float) -> None:
    at_a_load_of(busy, monkeypatch)
    assert load.stretched(5.0) == bound
    assert figures() == [load.Figure("", None, 5.0, bound, busy)]


def test_a_bound_that_reaches_the_fallback_fails_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_load_of(9.0, monkeypatch)
    assert load.stretched(5.0, excludes=12.0) == 10.0
    with pytest.raises(AssertionError, match="the fallback that it excludes takes 12 s"):
        load.stretched(6.0, excludes=12.0)
    assert len(figures()) == 2


@pytest.mark.parametrize("soak", [True, False])
def test_only_make_soak_holds_a_limit(monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    at_a_load_of(0.0, monkeypatch)
    monkeypatch.setattr(load, "SOAK", soak)
    load.hold("quick", 0.5, 1.0)
    if soak:
        with pytest.raises(AssertionError, match=r"slow: 1.50 s, and the limit is 1.0 s"):
            load.hold("slow", 1.5, 1.0)
    else:
        load.hold("slow", 1.5, 1.0)
    assert [one.seconds for one in figures()] == [0.5, 1.5]


def test_where_every_test_must_run_a_skip_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUIRE_CLUSTER", "1")
    assert (
        refused("no /usr/bin/tcsh here") == "REQUIRE_CLUSTER=1 lets nothing be skipped: no /usr/bin/tcsh here"
    )
    assert refused("Skipped: no Python 3.9 here") is None
    monkeypatch.delenv("REQUIRE_CLUSTER")
    assert refused("no /usr/bin/tcsh here") is None


def test_what_does_not_come_is_named() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0.01 s: the end"):
        wait_until(lambda: False, lambda: "the end", patience=0.01, pause=0.001)
    assert time.monotonic() - began >= 0.01
    assert wait_until(lambda: "seen", "a word") == "seen"


def test_no_two_files_of_tests_have_one_name() -> None:
    """The folders are no packages: pytest would refuse the second of a name, and with it the whole run."""
    names = [path.name for path in HERE.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


# -- which tests share a worker and a cluster, in make test and in make soak --


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
