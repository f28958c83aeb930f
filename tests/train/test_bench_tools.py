"""The programs of `muster bench`, run for real: what they print is what the driver reads."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from muster.deploy.features.bench import command as collectives
from muster.deploy.features.bench import host_speeds as hosts
from muster.deploy.features.bench import link_speeds as links
from muster.deploy.features.bench.programs import host_speed, sweep
from muster.deploy.features.bench.programs import links as links_tool
from muster.deploy.features.bench.programs.host_speed import HostConfig
from muster.deploy.features.bench.programs.links import LinksConfig, one_at_a_time, rounds
from muster.deploy.features.bench.programs.sweep import SweepConfig
from muster.deploy.features.bench.programs.timed_operations import OPERATIONS, TYPES
from muster.train.job.group import Job
from tests.train.forked import on_hosts

NAMES = [f"host{number}" for number in range(3)]


def printed_links(group: Job) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert links_tool.show(group, LinksConfig(large=1 << 12, seconds=0.01, trips=3)) == 0
    return text.getvalue()


def printed_speeds(group: Job) -> str:
    config = HostConfig(seconds=0.001, mebibytes=1, matrix=8, in_turn=True)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert host_speed.show(group, config) == 0
    return text.getvalue()


def test_each_rank_measures_its_link_to_each_other(tmp_path: Path) -> None:
    printed = dict(enumerate(on_hosts(tmp_path, 3, printed_links)))
    found, problems = links.read("job", "today", NAMES, printed)
    assert problems == {}
    assert (found.backend, found.device, len(found.links)) == ("gloo", "cpu", 6)
    assert all(link.latency_s > 0 and link.bytes_per_s > 0 for link in found.links)


def test_each_host_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_OUT", str(tmp_path / "out"))
    printed = dict(enumerate(on_hosts(tmp_path, 2, printed_speeds)))
    found, problems = hosts.read("job", "today", NAMES[:2], printed)
    assert problems == {}
    names = {name for name, _ in found.rows()}
    assert {"memory copy", "matmul float32", "disk write", "disk read"} <= names
    assert [*(tmp_path / "out").iterdir()] == []


def test_waits_for_a_gpu_hardly_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def pass_time(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(
        "muster.deploy.features.bench.programs.host_speed.time.perf_counter", lambda: clock[0]
    )
    monkeypatch.setattr(host_speed, "wait_for_gpu", lambda device: pass_time(1e-5))
    first = iter([2.0])  # the first call loads kernels
    copies = host_speed.rate(lambda: pass_time(next(first, 2e-4)), 0.5)
    assert copies == pytest.approx(1 / 2e-4, rel=1e-3)
    began = clock[0]
    assert host_speed.rate(lambda: pass_time(3.0), 0.5) == pytest.approx(1 / 3.0, rel=1e-3)
    assert clock[0] - began < 7  # a warm-up and one measured call: each may take seconds


@pytest.mark.parametrize(("ranks", "datatype"), [(3, "float"), (2, "half")])
def test_every_operation_of_a_sweep_is_right(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ranks: int, datatype: str
) -> None:
    config = SweepConfig(
        minbytes=48, maxbytes=4096, stepfactor=16, iters=1, warmup_iters=1, datatype=datatype
    )
    assert on_hosts(tmp_path, ranks, lambda group: sweep.show(group, config)) == [0] * ranks
    found = collectives.read_sweep("host0", capfd.readouterr().out).as_json("job")
    assert found["refused"] == {}
    assert {row["operation"] for row in found["rows"]} == {each.name for each in OPERATIONS}
    for row in found["rows"]:
        assert row["wrong"] == 0, row
        assert row["size"] % row["count"] == 0
        assert row["algbw"] == pytest.approx(row["size"] / row["time_us"] / 1e3)
        factor = next(each.bus(ranks) for each in OPERATIONS if each.name == row["operation"])
        assert row["busbw"] == pytest.approx(factor * row["algbw"])


def test_a_wrong_result_is_counted_and_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dist.broadcast

    def spoiled(tensor: torch.Tensor, src: int) -> None:
        whole(tensor, src)
        if dist.get_rank() == 1:
            tensor[3] += 1

    monkeypatch.setattr(dist, "broadcast", spoiled)
    config = SweepConfig(operations="broadcast", minbytes=1024, maxbytes=1024, iters=1)
    assert on_hosts(tmp_path, 2, lambda group: sweep.show(group, config)) == [1, 1]
    found = collectives.read_sweep("host0", capfd.readouterr().out).as_json("job")
    assert found["rows"][0]["wrong"] == 1


def test_driver_and_program_know_the_same_operations_and_types() -> None:
    assert set(collectives.OPERATIONS) == {each.name for each in OPERATIONS}
    assert set(collectives.TYPES) == {*TYPES}


def test_sizes_grow_by_a_factor() -> None:
    assert SweepConfig(minbytes=8, maxbytes=70, stepfactor=2).sizes == (8, 16, 32, 64)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md there, and for the last two its sources."""
    factors = {each.name: each.bus(4) for each in OPERATIONS}
    assert factors == {
        "all_reduce": 1.5,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "broadcast": 1,
        "alltoall": 0.75,
        "sendrecv": 1,
    }


# -- the rounds in which the links of a cluster are measured --


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 8, 16, 17, 255, 256])
def test_every_two_hosts_meet_once_and_nobody_meets_two_at_a_time(hosts: int) -> None:
    schedule = rounds(hosts)
    met = Counter(pair for pairs in schedule for pair in pairs)
    assert met == Counter(itertools.combinations(range(hosts), 2))
    for pairs in schedule:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(("hosts", "count"), [(2, 1), (3, 3), (4, 3), (255, 255), (256, 255)])
def test_no_more_rounds_than_needed(hosts: int, count: int) -> None:
    assert len(rounds(hosts)) == count


def test_all_hosts_but_one_of_an_odd_number_are_busy_in_each_round() -> None:
    assert {len(pairs) for pairs in rounds(256)} == {128}
    assert {len(pairs) for pairs in rounds(255)} == {127}


@pytest.mark.parametrize("hosts", [0, 1])
def test_without_two_hosts_nobody_meets(hosts: int) -> None:
    assert [pair for pairs in rounds(hosts) for pair in pairs] == []


def test_in_turn_there_is_one_pair_in_each_round() -> None:
    alone = one_at_a_time(rounds(5))
    assert [len(pairs) for pairs in alone] == [1] * 10
