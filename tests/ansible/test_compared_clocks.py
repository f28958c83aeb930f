"""The comparison of clocks, by the filter of the role time_sync."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ansible.programs import loaded

clocks = loaded("time_sync/filter_plugins/muster_clocks.py")
ALLOWED = 0.010


def compared(measured: list[dict[str, Any]], head: str = "node1", first: int = 1) -> dict[str, Any]:
    usual = {"synchronised": True, "offset": 0.0, "margin": 0.0, "apart": 0.0, "source": "10.0.0.9"}
    by_name = {f"node{number}": usual | clock for number, clock in enumerate(measured, first)}
    found: dict[str, Any] = clocks.compare(by_name, head, ALLOWED)
    return found


@pytest.mark.parametrize(
    ("apart", "problem"),
    [
        ([0.0, 0.0, 1.25], "node3: its clock is +1.250000 s from most of the others"),
        ([0.0, 1.25], "node2: its clock is +1.250000 s from node1"),
        ([0.0, 1.25, 0.0], "node2: its clock is +1.250000 s from most of the others"),
        ([0.0, -1.25, -1.25], "node1: its clock is +1.250000 s from most of the others"),
        ([0.0, 0.001, -0.001], ""),
    ],
    ids=["one of three", "one of two", "a worker", "the head", "all near the head"],
)
def test_the_clock_that_is_furthest_from_most_is_named(apart: list[float], problem: str) -> None:
    found = compared([{"apart": value, "margin": 9.0} for value in apart])
    assert found["spread"] == pytest.approx(max(apart) - min(apart))
    assert [text[: len(problem)] for text in found["problems"]] == [problem] * bool(problem)


@pytest.mark.parametrize(
    ("margins", "problem"),
    [
        ([0.002, 0.002], ""),
        ([0.001, 0.030], "node2: its clock is +0.000000 s from 10.0.0.9, give or take 0.030000 s; "),
    ],
    ids=["good sources", "a source that is far away"],
)
def test_margins_count_where_the_head_did_not_answer(margins: list[float], problem: str) -> None:
    found = compared([{"margin": margins[0]}, {"margin": margins[1], "apart": None}])
    assert found["spread"] == pytest.approx(sum(margins))
    starts = [problem, "node2: node1 did not answer over NTP"] if problem else []
    assert len(found["problems"]) == len(starts)
    assert all(text.startswith(start) for text, start in zip(found["problems"], starts, strict=True))


def test_a_run_without_the_head_compares_with_it_all_the_same() -> None:
    """With --limit the head may be none of the measured hosts."""
    found = compared([{"apart": 1.25}], first=2)
    assert found["spread"] == pytest.approx(1.25)
    assert found["problems"][0].startswith("node2: its clock is +1.250000 s from the true time")


def test_a_clock_without_a_source_is_named_with_the_remedy() -> None:
    (problem,) = compared([{"synchronised": False, "source": "no source answers"}])["problems"]
    assert problem.startswith("node1: its clock is not synchronised (no source answers)")
    assert problem.endswith("-e time_sync_mode=head")
