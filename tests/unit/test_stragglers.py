"""What is said of late ranks: the likely cause, the lines, and what is left of many looks at a run."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.core.agent.processes import peek
from muster.deploy.core.decode import from_json
from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample
from muster.deploy.features.why.lateness import Arriving, Pace, paces
from muster.deploy.features.why.messages import Arrivals, Evidence, Pressure, StackLine
from muster.deploy.features.why.on_host.arrivals import counters
from muster.deploy.features.why.on_host.arrivals import summary as summary_of_rank
from muster.deploy.features.why.on_host.evidence import connections
from muster.deploy.features.why.positions import Rank
from muster.deploy.features.why.stragglers import (
    MOST_RANKS,
    Summary,
    Surroundings,
    lines,
    pace_line,
    stragglers,
)
from tests.unit.paces import BEGAN, Run, pace

QUIET = Pressure(queued=0.01, throttled=0.0)
READS = (
    StackLine("sleep", "torch/utils/data/loader.py", 3, False),
    StackLine("shards", "loader.py", 40, True),
)
FORWARD = (StackLine("forward", "model.py", 7, True),)
SAVES = (StackLine("save", "torch/serialization.py", 850, False), StackLine("main", "train.py", 30, True))
SAVED = "it saves or loads a checkpoint, in main (train.py:30)"
WAITS = (
    StackLine("all_reduce", "torch/distributed/c10d.py", 9, False),
    StackLine("main", "train.py", 88, True),
)


def run(slow: Sequence[int] = (2,)) -> Pace:
    found = pace(Run(4, slower=lambda rank, step, part: 0.05 * (rank in slow), per_host=2).arriving())
    assert found is not None
    return found


def cause(
    mine: Pressure = QUIET,
    others: Pressure = QUIET,
    samples: Mapping[str, HostSample] | None = None,
    looks: Sequence[Sequence[Rank]] = (),
) -> str:
    pressures = {0: others, 1: others, 2: mine, 3: others}
    (found,) = stragglers(run(), Surroundings(pressures, samples or {}, looks))
    return found.cause


def host(name: str, **measured: object) -> HostSample:
    return replace(HostSample(at=BEGAN, host=name), **measured)  # type: ignore[arg-type]


def look(*frames: tuple[StackLine, ...]) -> list[Rank]:
    return [Rank(number, "", Evidence(now=1.0, frames=each)) for number, each in enumerate(frames)]


def test_a_quota_that_is_used_up_is_the_cause_where_others_have_none() -> None:
    assert cause(replace(QUIET, throttled=0.8)) == "its CPU quota, which is used up in 80 % of its periods"
    assert cause(replace(QUIET, throttled=0.8), replace(QUIET, throttled=0.7)) == ""


def test_a_quota_explains_more_than_the_queue_that_it_makes() -> None:
    assert cause(replace(QUIET, throttled=0.9, queued=0.8)).startswith("its CPU quota")


def test_work_of_others_on_its_host_is_the_cause_where_a_rank_waits_for_a_processor() -> None:
    ranks = (RankSample(2, cpu=0.4), RankSample(3, cpu=0.6))
    busy = {"node2": host("node2", cpus=4, cpu=1.0, ranks=ranks)}
    waits = replace(QUIET, queued=0.45)
    assert cause(waits, samples=busy) == (
        "it waits for a processor 45 % of the time, other work on node2 has them (3.0 of 4)"
    )
    assert cause(waits) == "it waits for a processor 45 % of the time, other work on node2 has them"
    assert cause(waits, replace(QUIET, queued=0.4)) == ""


def test_ranks_that_have_more_threads_than_their_host_has_processors_are_their_own_neighbours() -> None:
    ranks = (RankSample(2, cpu=1.9), RankSample(3, cpu=2.0))
    own = {"node2": host("node2", cpus=4, cpu=1.0, ranks=ranks)}
    assert cause(replace(QUIET, queued=0.45), samples=own) == (
        "it waits for a processor 45 % of the time, "
        "the ranks of node2 have more threads than it has processors"
    )


def test_heat_is_the_cause_of_a_host_that_is_hot_or_a_gpu_with_a_lower_clock_than_others() -> None:
    assert cause(samples={"node2": host("node2", temperature=97.0)}) == "node2 is hot: 97 °C"
    assert cause(samples={"node1": host("node1", temperature=97.0)}) == ""
    cool, slow = GpuSample(0, clock=1980.0, temperature=60.0), GpuSample(0, clock=1200.0, temperature=86.0)
    three = {name: host(name, gpus=(cool,)) for name in ("node1", "node3", "node4")}
    three["node2"] = host("node2", gpus=(slow,))
    assert cause(samples=three) == "GPU 0 of node2 is slow: 86 °C, at 1200 MHz"


def test_a_gpu_that_is_idle_or_of_another_rank_is_not_the_cause() -> None:
    fast = GpuSample(0, utilisation=0.9, clock=1980.0)
    idle, other = GpuSample(1, utilisation=0.0, clock=345.0), GpuSample(2, utilisation=0.9, clock=1200.0)
    node1 = host("node1", gpus=(fast,))

    def of_rank(used: tuple[int, ...] | None) -> str:
        ranks = (RankSample(2, gpus=used),)
        return cause(samples={"node1": node1, "node2": host("node2", gpus=(fast, idle, other), ranks=ranks)})

    assert (of_rank((0, 1)), of_rank(())) == ("", "")
    assert of_rank((2,)) == of_rank(None) == "GPU 2 of node2 is slow: 0 °C, at 1200 MHz"


def test_the_line_where_only_the_late_rank_is_so_often_is_the_cause() -> None:
    looks = [look(WAITS, WAITS, READS, FORWARD), look(FORWARD, FORWARD, FORWARD, FORWARD)]
    assert cause(looks=looks) == "it reads data, in shards (loader.py:40)"
    assert cause(looks=looks[1:]) == ""  # where all are, none is late


def test_a_checkpoint_that_a_rank_saves_again_and_again_is_the_cause_and_not_what_it_takes() -> None:
    looks = [look(FORWARD, FORWARD, SAVES, FORWARD)] * 3
    assert cause(replace(QUIET, queued=0.5), looks=looks) == SAVED
    assert cause(replace(QUIET, throttled=0.5), looks=looks) == SAVED


def test_the_stacks_are_read_although_a_rank_waits_for_a_processor_and_what_they_show_stays() -> None:
    summary, seen = Summary(), looks_at([(2,)] * 3)
    waits = Surroundings({2: replace(QUIET, queued=0.5), 1: QUIET}, {})
    found = summary.add(seen[0], waits)
    assert summary.needs_stacks
    summary.explain(found, replace(waits, looks=[look(FORWARD, FORWARD, SAVES, FORWARD)] * 3))
    summary.add(seen[1], waits)
    assert [late.cause for late in summary.late] == [SAVED]
    assert not summary.needs_stacks


def test_frames_of_torch_distributed_outside_of_the_line_of_the_user_are_no_wait() -> None:
    record = StackLine("wrapper", "torch/distributed/elastic/multiprocessing/errors/__init__.py", 362, False)
    fsdp = StackLine("forward", "torch/distributed/fsdp/fully_sharded_data_parallel.py", 849, False)
    for outside in ((record,), (fsdp, StackLine("main", "train.py", 80, True), record)):
        late = look(WAITS, WAITS, (*READS, *outside), (*FORWARD, *outside))
        assert cause(looks=[late]) == "it reads data, in shards (loader.py:40)"
        waits = look(FORWARD, FORWARD, (*WAITS, *outside), FORWARD)
        assert cause(looks=[waits]) == ""


def test_a_rank_that_waits_in_a_collective_is_nowhere_of_its_own() -> None:
    assert cause(looks=[look(FORWARD, FORWARD, WAITS, FORWARD)]) == ""


@pytest.mark.parametrize(
    ("remote", "timer", "resent", "inode", "found"),
    [
        ("0300000A:733C", "01:00000042", "00000004", "77", ["10.0.0.3:29500"]),
        ("0000000000000000FFFF00000300000A:733C", "01:00000042", "00000002", "77", ["10.0.0.3:29500"]),
        ("000080FE000000000000000001000000:0016", "01:00000042", "00000002", "77", ["[fe80::1]:22"]),
        ("0300000A:733C", "01:00000042", "00000001", "77", []),  # one packet was lost
        ("0300000A:733C", "04:00000042", "00000009", "77", []),  # the other side does not read
        ("0300000A:733C", "01:00000042", "00000009", "78", []),  # of another process
    ],
)
def test_a_connection_that_sends_again_and_again_has_no_answer(
    tmp_path: Path, remote: str, timer: str, resent: str, inode: str, found: list[str]
) -> None:
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/7/net").mkdir()
    (tmp_path / "proc/7/fd/3").symlink_to("socket:[77]")
    (tmp_path / "proc/7/fd/4").symlink_to("/dev/null")
    table = (
        f"sl\n0: 0100000A:0016 {remote} 02 00000001:00000000 {timer} {resent} 0 0 {inode} 2\n"
        "1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 2\n"  # it listens
    )
    (tmp_path / "proc/7/net/tcp").write_text(table)
    assert connections(7, str(tmp_path)) == (found, ["10.0.0.1"] if inode == "77" else [])
    assert connections(8, str(tmp_path)) == ([], [])


def test_a_connection_is_found_in_a_table_of_many_pages() -> None:
    """The kernel gives /proc/net/tcp page by page, 27 lines each; the newest sockets may be first or last."""
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        assert connections(os.getpid()) == ([], [])  # of sockets that only listen
        stack.enter_context(socket.create_connection(server.getsockname()))
        assert connections(os.getpid()) == ([], ["127.0.0.1"])
        assert peek("/proc/net/tcp", 1 << 20).count("\n") > 60


def test_a_cause_and_the_line_are_both_said() -> None:
    looks = [look(WAITS, WAITS, FORWARD, WAITS)]
    assert cause(replace(QUIET, throttled=0.5), looks=looks) == (
        "its CPU quota, which is used up in 50 % of its periods; it is in forward (model.py:7)"
    )


def test_the_lines_name_the_rank_how_late_it_is_where_and_since_when() -> None:
    found = stragglers(run(), Surroundings({}, {}))
    (first,) = lines(found, BEGAN + 60)
    assert first.startswith("rank 2 on node2 is late: the others wait ")
    assert (
        " in 30 of the last 30 steps, in all_reduce of group 0 (3.9 KiB, train.py:88), for at least 58."
        in first
    )
    assert lines(found, BEGAN + 60, ended=True)[0].startswith("rank 2 on node2 was late: the others waited ")


def test_ranks_of_one_host_with_the_same_cause_are_one_line() -> None:
    found = stragglers(run(slow=(2,)), Surroundings({}, {}))
    both = [*found, replace(found[0], rank=3)]
    (line,) = lines(both, BEGAN)
    assert line.startswith("ranks 2-3 on node2 are late: the others wait ")
    caused = [replace(rank, cause="a busy core") for rank in both]
    assert lines(caused, BEGAN)[1:] == ["likely cause: a busy core"]


def test_nothing_is_said_of_a_balanced_run() -> None:
    assert stragglers(run(slow=()), Surroundings({}, {})) == []
    assert stragglers(None, Surroundings({}, {})) == []
    assert lines([], BEGAN) == []


def test_what_a_rank_says_of_itself_cannot_reach_the_terminal() -> None:
    evil = (StackLine("f\x1b[2J", "a\x07.py", 3, True),)
    found = stragglers(run(), Surroundings({}, {}, [look(WAITS, WAITS, evil, WAITS)]))
    assert not any(sign in line for sign in "\x1b\x07" for line in lines(found, BEGAN))


# -- many looks --


def looks_at(slow: Sequence[tuple[int, ...]], steps: int = 30) -> list[list[Pace]]:
    """Looks at a run of four ranks, of which these are slow in the steps of each look."""
    total = steps * len(slow)
    run = Run(4, total, lambda rank, step, part: 0.05 * (rank in slow[step // steps]), most=10**6)
    arriving = run.arriving()
    found = []
    for number in range(1, len(slow) + 1):
        upto = [upto_step(one, number * steps) for one in arriving]
        found.append(paces(upto))
    return found


def upto_step(one: Arriving, count: int) -> Arriving:
    """A rank with the last 256 collectives of its first ones."""
    (track,) = one.arrivals.tracks
    part = slice(max(0, count - 256), count)
    cut = replace(track, count=count, seqs=track.seqs[part], at=track.at[part], sites=track.sites[part])
    return replace(one, arrivals=replace(one.arrivals, tracks=(cut,)))


NOTHING = Surroundings({}, {})


def summed(slow: Sequence[tuple[int, ...]]) -> Summary:
    summary = Summary()
    for look in looks_at(slow):
        summary.add(look, NOTHING)
    return summary


def test_a_rank_that_was_late_once_in_a_long_run_is_not_named_at_its_end() -> None:
    assert summed([()] * 5 + [(2,)] + [()] * 6).late == []


def test_a_rank_that_was_late_in_most_of_the_run_is_named_at_its_end() -> None:
    (late,) = summed([(2,)] * 6 + [()] * 2).late
    assert (late.rank, late.host) == (2, "node3")


def test_a_rank_that_has_become_slow_at_last_is_named_with_the_beginning() -> None:
    summary = summed([()] * 8 + [(2,)] * 2)
    (late,) = summary.late
    assert late.since == pytest.approx(BEGAN + 24, abs=1.0)  # 240 steps of 0.1 s
    assert late.late == pytest.approx(0.05, abs=0.01)


def test_a_look_without_new_steps_changes_nothing() -> None:
    summary, (look,) = Summary(), looks_at([(2,)], steps=12)
    for _ in range(20):
        summary.add(look, NOTHING)
    assert summary.late == []  # twelve steps prove nothing


def test_the_cause_that_was_found_once_is_kept() -> None:
    summary, looks = Summary(), looks_at([(2,)] * 3)
    summary.add(looks[0], Surroundings({2: replace(QUIET, throttled=0.8), 1: QUIET}, {}))
    summary.add(looks[1], NOTHING)
    (late,) = summary.late
    assert late.cause.startswith("its CPU quota")


def test_a_host_that_does_not_answer_once_leaves_the_ranks_named() -> None:
    summary = summed([(2,)] * 3)
    assert summary.add([], NOTHING) is None
    assert [late.rank for late in summary.late] == [2]


def test_stacks_are_read_until_the_cause_is_known_but_not_for_ever() -> None:
    summary, (look,) = Summary(), looks_at([(2,)])
    assert not summary.needs_stacks
    pace = summary.add(look, NOTHING)
    for _ in range(3):
        assert summary.needs_stacks
        summary.explain(pace, NOTHING)
    assert not summary.needs_stacks


def test_a_line_of_the_pace_has_the_slowest_of_very_many_ranks() -> None:
    found = pace(Run(300, 10, lambda rank, step, part: 0.05 * (rank == 299)).arriving())
    assert found
    line = pace_line(BEGAN, 0, found, [])
    assert '"rank":299,"host":"node300"' in line
    assert line.count('"own_seconds"') == MOST_RANKS


# -- what the agent reads --


def entry(seq: int, kind: str = "call", state: str = "d", **more: object) -> dict[str, object]:
    at = BEGAN + seq
    like = {"group": "0", "kind": kind, "seq": seq, "at": at, "end": at + 0.5, "state": state}
    return {**like, "op": "all_reduce", "where": "train.py:88", "bytes": 4, **more}


def short(entries: list[dict[str, object]], trace: list[dict[str, object]]) -> Arrivals:
    groups = [{"group": "0", "kind": "call", "ranks": "0-3", "count": 700}]
    read: Arrivals = from_json(Arrivals, summary_of_rank({"entries": entries, "groups": groups}, trace))
    return read


def test_equal_collectives_are_one_site_and_messages_are_left_out() -> None:
    read = short([entry(seq) for seq in (699, 700)] + [entry(3, "message")], [])
    (track,) = read.tracks
    assert (track.seqs, track.sites, track.count, track.ranks) == ((699, 700), (0, 0), 700, "0-3")
    assert read.sites == (("all_reduce", "train.py:88", 4, True),)


def test_what_goes_on_in_the_background_is_told_from_what_is_waited_for() -> None:
    read = short(
        [entry(1), entry(2, state="a")],
        [entry(1, "torch", where=""), entry(2, "torch", where=""), entry(9, "torch", where="")],
    )
    waits = {track.kind: [read.sites[site].waits for site in track.sites] for track in read.tracks}
    assert waits == {"call": [True, False], "torch": [True, False, False]}


@pytest.mark.parametrize(
    ("cgroup", "stat"),
    [
        ("0::/user.slice/job\n", "sys/fs/cgroup/user.slice/job/cpu.stat"),
        ("0::/user.slice/job\n", "sys/fs/cgroup/user.slice/cpu.stat"),
        ("0::/\n", "sys/fs/cgroup/cpu.stat"),
        ("3:cpu,cpuacct:/docker/ab\n2:memory:/x\n", "sys/fs/cgroup/cpu,cpuacct/cpu.stat"),
        ("3:cpu:/docker/ab\n", "sys/fs/cgroup/cpu/docker/ab/cpu.stat"),
    ],
)
def test_the_quota_of_a_process_is_found_in_any_cgroup_above(tmp_path: Path, cgroup: str, stat: str) -> None:
    for name, content in {
        "proc/7/schedstat": "2000000000 500000000 12\n",
        "proc/7/cgroup": cgroup,
        stat: "nr_periods 40\nnr_throttled 10\nthrottled_usec 5\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    read = counters(7, str(tmp_path))
    assert read
    assert read.queued == 0.5
    assert [*read.quotas.values()] == [(40, 10)]
    assert counters(8, str(tmp_path)) is None
