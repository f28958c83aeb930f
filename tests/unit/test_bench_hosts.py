"""What is said about hosts by themselves, and about rows of a sweep: from printed lines to words."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from muster.deploy.core.errors import MusterError
from muster.deploy.features.bench import command as collectives
from muster.deploy.features.bench.host_speeds import Speeds, as_text, read, slow_hosts

FIGURES = {"memory copy": (20.0, "GB/s"), "matmul float32": (900.0, "GFLOP/s"), "disk read": (1500.0, "GB/s")}


def text(factor: float = 1.0, changes: Mapping[str, float] | None = None) -> str:
    """What a healthy host prints, times a factor; some figures times another one."""
    lines = [
        {
            "bench": "host",
            "name": name,
            "value": value * factor * (changes or {}).get(name, 1.0),
            "unit": unit,
        }
        for name, (value, unit) in FIGURES.items()
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def speeds(*texts: str) -> Speeds:
    hosts = [f"node{number}" for number in range(1, len(texts) + 1)]
    found, problems = read("job", "today", hosts, dict(enumerate(texts)))
    assert problems == {}
    return found


def test_a_host_that_is_slow_in_one_thing_is_named_with_it() -> None:
    (slow,) = slow_hosts(speeds(text(), text(1.05), text(changes={"memory copy": 0.5}), text(0.97)))
    assert (slow.host, slow.name, slow.value, slow.usual) == ("node3", "memory copy", 10.0, 20.0)


def test_even_hosts_and_a_single_host_are_not_slow() -> None:
    assert slow_hosts(speeds(text(), text(1.1), text(0.9))) == ()
    assert slow_hosts(speeds(text())) == ()


def test_of_two_hosts_the_slower_one_is_named() -> None:
    assert {slow.host for slow in slow_hosts(speeds(text(), text(0.5)))} == {"node2"}


def test_a_figure_that_another_host_lacks_is_compared_with_those_that_have_it() -> None:
    gpu = json.dumps({"bench": "host", "name": "gpu0 matmul bfloat16", "value": 9e5, "unit": "GFLOP/s"})
    assert slow_hosts(speeds(text() + gpu, text())) == ()


def test_the_text_has_a_line_for_each_figure_and_names_the_slow() -> None:
    found = speeds(text(), text(), text(0.5))
    shown = as_text(found, slow_hosts(found), {"node9": "it printed no figure"})
    assert "matmul float32     900    450  node3    900  node2  GFLOP/s" in shown
    assert "SLOW    node3: disk read 750 GB/s; the others have 1,500 GB/s" in shown
    assert "ERROR   node9: it printed no figure" in shown


@pytest.mark.parametrize(
    "line",
    [
        '{"bench": "host", "name": "memory copy", "value": -1, "unit": "GB/s"}',
        '{"bench": "host", "name": "\\u001b[2J", "value": 1, "unit": "GB/s"}',
        '{"bench": "host", "name": "memory copy", "value": 1, "unit": "miles"}',
        '{"bench": "host", "name": "memory copy", "value": "fast", "unit": "GB/s"}',
        "",
    ],
)
def test_a_host_with_invalid_output_is_named_and_the_others_stay(line: str) -> None:
    found, problems = read("job", "today", ["a", "b"], {0: text(), 1: line + "\n"})
    assert [*problems] == ["b"]
    assert len(found.figures[0]) == len(FIGURES)


# -- rows of a sweep --

ABOUT = '{"bench": "collectives", "ranks": 2, "backend": "gloo", "device": "cpu"}'
ROW = {
    **{"bench": "collective", "operation": "all_reduce", "size": 8, "count": 2, "type": "float"},
    **{"time_us": 12.5, "algbw": 1.0, "busbw": 1.0, "wrong": 0},
}
REFUSED = {"bench": "refused", "operation": "alltoall", "message": "no such thing"}


def test_the_rows_of_a_sweep_become_one_object() -> None:
    printed = "\n".join([ABOUT, json.dumps(ROW), "a warning", json.dumps(REFUSED)])
    found = collectives.read_sweep("node1", printed).as_json("job")
    assert (found["backend"], found["refused"]) == ("gloo", {"alltoall": "no such thing"})
    assert found["rows"] == [{name: value for name, value in ROW.items() if name != "bench"}]


def test_the_table_has_names_and_units_of_nccl_tests() -> None:
    late = {**ROW, "operation": "broadcast", "size": 1 << 20, "time_us": 12345.6, "wrong": 3}
    printed = "\n".join([ABOUT, *map(json.dumps, (ROW, late, REFUSED))])
    assert collectives.read_sweep("node1", printed).as_text().splitlines() == [
        "# Using gloo on cpu, 2 ranks",
        "#",
        *("# Collective test starting: all_reduce_perf", "#", *collectives.HEADS),
        "           8             2     float    12.50     1.00     1.00       0",
        *("# Collective test starting: broadcast_perf", "#", *collectives.HEADS),
        "     1048576             2     float    12346     1.00     1.00       3",
        "# alltoall: refused: no such thing",
        "# Out of bounds values : 3 FAILED",
        "# Avg bus bandwidth    : 1",
    ]


@pytest.mark.parametrize(
    "printed",
    [
        "",
        json.dumps(ROW),
        f"{ABOUT}\n{json.dumps({**ROW, 'size': -1})}",
        f"{ABOUT}\n{json.dumps({**ROW, 'wrong': None})}",
        f"{ABOUT}\n{json.dumps({**REFUSED, 'message': 'x' * 500})}",
    ],
)
def test_rows_that_no_sweep_prints_are_refused_with_the_host(printed: str) -> None:
    with pytest.raises(MusterError, match=r"^node1: "):
        collectives.read_sweep("node1", printed)
