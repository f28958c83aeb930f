"""Samples as plain values: what a host sends is checked, and what was not measured stays None."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample, as_line, of_json, of_line

FULL: dict[str, Any] = {
    "at": 1763800000.0,
    "host": "node1",
    "attempt": 1,
    "cpus": 2,
    "load": 1.2,
    "cpu": 0.83,
    "memory": 1 << 30,
    "memory_total": 1 << 31,
    "swap": 0,
    "net_in": 10.0,
    "net_out": 20.0,
    "disk_read": 0.0,
    "disk_write": 5.5,
    "shm": 4096,
    "shm_total": 1 << 20,
    "temperature": 61.0,
    "gpus": [
        {"index": 0, "name": "H100", "utilisation": 0.5, "memory": 1, "memory_total": 2, "power": 300.0}
    ],
    "ranks": [{"rank": 3, "cpu": 0.9, "memory": 7, "threads": 5, "state": "R", "read": 0.0, "written": 1.0}],
    "training": {"step": 12, "loss": 0.25, "step_seconds": 0.1},
}


def test_a_sample_survives_its_line() -> None:
    sample = of_json(FULL)
    assert of_line(as_line(sample)) == sample
    assert json.loads(as_line(sample)) == FULL
    assert sample.ranks == (RankSample(3, 0.9, 7, 5, "R", 0.0, 1.0),)


def test_a_sample_needs_its_time_and_its_host_alone() -> None:
    assert of_json({"at": 1, "host": "a"}) == HostSample(1.0, "a")
    assert of_json({"at": 1, "host": "a", "temperature": None, "gpus": None}) == HostSample(1.0, "a")


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert of_json({"at": 1, "host": "a", "fans": [1, 2]}) == HostSample(1.0, "a")


def test_what_was_not_measured_is_not_written() -> None:
    line = as_line(HostSample(1.0, "a", gpus=(GpuSample(0),)))
    assert json.loads(line) == {"at": 1.0, "host": "a", "attempt": 0, "gpus": [{"index": 0}]}


CPUS: tuple[Any, ...] = (1.5, -0.1, True, "1", float("nan"), 10**400, [])


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, [], "sample", {}, {"at": 1}, {"host": "a"}, {**FULL, "at": "now"}, {**FULL, "host": 3}),
        *({**FULL, "cpu": value} for value in CPUS),
        *({**FULL, "memory": value} for value in (-1, 1.5, 1 << 61)),
        *({**FULL, "host": "a" * 257}, {**FULL, "gpus": {}}, {**FULL, "gpus": [{}]}),
        *({**FULL, "ranks": [{"rank": -1}]}, {**FULL, "ranks": [{"rank": 0}] * 5000}, {**FULL, "ranks": [3]}),
        {**FULL, "training": {"loss": 1.0}},
    ],
    ids=str,
)
def test_nonsense_is_no_sample(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|without"):
        of_json(wrong)


@pytest.mark.parametrize("line", ["", "{", "[" * 100_000, "\x00", '{"at": 1, "host":'])
def test_a_line_that_is_cut_or_damaged_is_no_sample(line: str) -> None:
    with pytest.raises(ValueError):
        of_line(line)
