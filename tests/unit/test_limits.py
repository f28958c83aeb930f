"""The rules of the tests themselves: how far a limit stretches, and what may be skipped."""

from __future__ import annotations

import time

import pytest

from tests import load
from tests.conftest import HERE, refused
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
def test_a_limit_stretches_with_the_load_at_most_twofold(
    monkeypatch: pytest.MonkeyPatch, busy: float, bound: float
) -> None:
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
