"""Which failures of two attempts are the same one, and what a verdict then shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.deploy.core.job.cause import ended_early
from muster.deploy.core.job.restart_policy import early_failure, failed_host, first_alike
from muster.deploy.core.job.result import Failure, LaunchResult, RankExit
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import verdict
from muster.deploy.features.why.diagnosis import Why, needed
from muster.deploy.features.why.hang_verdict import HangVerdict
from muster.deploy.features.why.kernel import KernelLine, MemoryKills, with_kills, with_lines
from muster.deploy.features.why.options import WhyOptions
from tests.unit.plans import make_plan

PLAN = make_plan("node[1-2] slots=2")


def traceback(line: int = 2, name: str = "missing", path: str = "/home/ml/train.py") -> tuple[str, ...]:
    return (
        "Traceback (most recent call last):\n",
        f'  File "{path}", line {line}, in <module>\n',
        f"    import {name}\n",
        f"ModuleNotFoundError: No module named '{name}'\n",
    )


def ended(code: int, *tail: str, ranks: tuple[int, ...] = (3,), why: str = "") -> LaunchResult:
    """An attempt without a step, in which these ranks ended so, the first one first."""
    ends = {rank: RankExit(PLAN.ranks[rank], code, 100.0, tail, why) for rank in ranks}
    return LaunchResult(PLAN, 90.0, 101.0, ends[ranks[0]].as_failure(), ends, stepped=False)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (ended(1, *traceback()), ended(1, *traceback(name="other")), True),
        (ended(1, *traceback()), ended(1, *traceback(path="/root/train.py"), ranks=(0,)), True),
        (ended(1, *traceback()), ended(1, *traceback(line=3)), False),
        (ended(1, *traceback(), "Exception ignored in: x\n"), ended(1, *traceback()), True),
        (ended(7), ended(7), True),
        (ended(7), ended(8), False),
        (ended(1, "no GPU 3 at 0x7f01\n"), ended(1, "no GPU 2 at 0x7e00\n"), True),
        (ended(1, "no GPU 3\n"), ended(1, "no licence\n"), False),
        (ended(-11), ended(-11), True),
        (ended(-9, why="out of memory"), ended(-9, why="out of memory"), True),
    ],
)
def test_a_failure_repeats_itself(first: LaunchResult, second: LaunchResult, same: bool) -> None:
    assert (first_alike(second, [first]) is first) is same


@pytest.mark.parametrize(
    "result",
    [
        ended(-9),
        ended(-15),
        ended(1, "RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer\n"),
        dataclasses.replace(ended(1, *traceback()), stepped=True),
        dataclasses.replace(ended(1), failure=Failure("host", "gone", 3, host="node2")),
        dataclasses.replace(ended(1), failure=Failure("launcher", "mpirun ended", 137, host="node1")),
        dataclasses.replace(ended(1), failure=None),
    ],
)
def test_what_is_not_of_the_program_or_after_a_step_is_no_early_failure(result: LaunchResult) -> None:
    assert early_failure(result) == ()


def test_a_launcher_repeats_itself_too() -> None:
    failure = Failure(
        "launcher", "mpirun ended with exit status 1", 1, host="node1", tail=("no such file\n",)
    )
    mark = early_failure(dataclasses.replace(ended(1), failure=failure, ends={}))
    assert mark == ("mpirun ended with exit status 1", "no such file")


PEER = "RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer\n"
LAUNCHER = Failure("launcher", "torchrun ended with SIGKILL (9)", 137, host="node2")
STALL = Failure("stall", "stopped (SIGSTOP) for 5 s", 3, host="node2", rank=3)


@pytest.mark.parametrize(
    ("result", "host"),
    [
        (ended(1, ranks=(3,)), "node2"),
        (dataclasses.replace(ended(1, ranks=(3,)), stepped=True), "node2"),
        (ended(-9, ranks=(3,)), "node2"),
        (ended(1, ranks=(3, 0)), None),
        (ended(1, PEER, ranks=(3,)), None),
        (ended(75, ranks=(3,)), None),
        (dataclasses.replace(ended(1), failure=LAUNCHER, ends={}), "node2"),
        (dataclasses.replace(ended(1), failure=dataclasses.replace(LAUNCHER, host="node1"), ends={}), None),
        (dataclasses.replace(ended(1), failure=STALL, ends={}), "node2"),
        (dataclasses.replace(ended(1), failure=None), None),
    ],
    ids=["rank", "later", "killed", "both", "victim", "saved", "launcher", "head", "stall", "none"],
)
def test_ranks_fail_on_one_host_alone(result: LaunchResult, host: str | None) -> None:
    assert failed_host(result) == host


def test_the_verdict_shows_the_first_traceback_and_names_every_earlier_failure(tmp_path: Path) -> None:
    first, last = ended(1, *traceback(name="first")), ended(1, *traceback(name="last"), ranks=(0,))
    text = verdict(dataclasses.replace(last, earlier=(first,)), RunFolder(tmp_path, "j"))
    assert "FAILED  rank 0 on node1: exit status 1\n" in text
    assert "ModuleNotFoundError: No module named 'first'" in text
    assert "No module named 'last'" not in text
    before = "rank 3 on node2: exit status 1 (ModuleNotFoundError: No module named 'first')"
    assert f"        before that: attempt 0: {before}\n" in text
    lost = Failure("host", "gone", 3, host="node2")
    text = verdict(dataclasses.replace(last, failure=lost, earlier=(first,)), RunFolder(tmp_path, "j"))
    assert "Traceback" not in text, "the last failure is another one"
    assert f"        before that: attempt 0: {before}\n" in text


# -- when a rank that ended well is named as what the others miss, and when it is not --


GLOO = "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]\n"
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
LATE = "[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc] Timed out waiting 1800000ms for recv\n"
STORE = "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was closed: timed out\n"
DATABASE = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
SERVICE = (
    "node1:71:71 [0] NCCL INFO NCCL version 2.19.3\n",
    "Traceback (most recent call last):\n",
    GLOO,
    "the program goes on\n",
    "Traceback (most recent call last):\n",
    '  File "torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper\n',
    DATABASE,
)
OWN = "ValueError: boom\n"
RAISED = "The above exception was the direct cause of the following exception:\n"
MPIRUN = "prterun has exited due to process rank 3 with PID 71 on node node2 exiting\n"


def end(rank: int, code: int = 0, at: float = 112.4) -> RankExit:
    return RankExit(PLAN.ranks[rank], code, at)


def failed(tail: str, reason: str = "exit status 1", kind: str = "rank") -> Failure:
    return Failure(kind, reason, 1, host="node1", rank=1, at=113.0, tail=(tail,))


NAMED = {
    "gloo": (failed(GLOO), [end(3)], "", [3]),
    "an error that was raised from that of a peer": (
        dataclasses.replace(
            failed(""), tail=("Traceback (most recent call last):\n", GLOO, RAISED, *SERVICE[4:5], OWN)
        ),
        [end(3)],
        "",
        [3],
    ),
    "NCCL": (failed(NCCL), [end(3)], "", [3]),
    "a collective that timed out": (failed(LATE), [end(3)], "", [3]),
    "the store": (failed(STORE), [end(3)], "", [3]),
    "several": (failed(GLOO), [end(3), end(2, at=111.0)], "", [2, 3]),
    "a victim that noticed first": (failed(GLOO), [end(3, at=113.1)], "", [3]),
    "a victim that was ended": (failed(GLOO, "SIGTERM (15)"), [end(3)], "", [3]),
    "mpirun ends the others": (failed("", "SIGTERM (15)"), [end(3), end(2)], MPIRUN, [3]),
    "the job stalls": (dataclasses.replace(failed("", kind="stall"), waits=True), [end(3)], "", [3]),
}
NOT_NAMED = {
    "no failure": (None, [end(3)], ""),
    "all others still ran": (failed(GLOO), [], ""),
    "the others failed too": (failed(GLOO), [end(3, 1)], ""),
    "it ended after the failure, as a launcher asked it to": (failed(GLOO), [end(3, at=114.0)], ""),
    "the failure is its own": (failed(OWN), [end(3)], ""),
    "a connection that is none between ranks": (failed(DATABASE), [end(3)], ""),
    "a database, after words about ranks": (dataclasses.replace(failed(""), tail=SERVICE), [end(3)], ""),
    "a signal without a word of mpirun": (failed("", "SIGTERM (15)"), [end(3)], ""),
    "mpirun names a rank that failed": (failed("", "SIGTERM (15)"), [end(2)], MPIRUN),
    "a host was lost": (failed(GLOO, "silent for 10 s", "host"), [end(3)], ""),
    "it was interrupted": (failed("", "SIGINT (2)", "interrupted"), [end(3)], ""),
}


@pytest.mark.parametrize(("failure", "ends", "said", "ranks"), NAMED.values(), ids=NAMED.keys())
def test_a_missed_rank_is_named(failure: Failure, ends: list[RankExit], said: str, ranks: list[int]) -> None:
    early = ended_early(failure, {end.placed.rank: end for end in ends}, said.splitlines())
    assert [end.placed.rank for end in early] == ranks


@pytest.mark.parametrize(("failure", "ends", "said"), NOT_NAMED.values(), ids=NOT_NAMED.keys())
def test_a_good_end_needs_a_reason(failure: Failure | None, ends: list[RankExit], said: str) -> None:
    assert ended_early(failure, {end.placed.rank: end for end in ends}, said.splitlines()) == ()


def test_a_rank_that_ended_well_because_its_launcher_asked_it_to_is_not_named() -> None:
    saved = dataclasses.replace(end(3, at=113.1), terminated=True)
    assert ended_early(failed(GLOO), {3: saved}, []) == ()


def test_the_verdict_and_the_result_name_it(tmp_path: Path) -> None:
    result = LaunchResult(PLAN, 100.0, 114.0, failed(GLOO), {3: end(3)}, early=(end(3),))
    text = verdict(result, RunFolder(tmp_path, "job"))
    assert "why: rank 3 on node2 ended with status 0 after 12.4 s, while others still ran\n" in text
    assert "why: does every rank run the same number of steps? uneven data: docs/how-to/" in text
    assert result.as_json()["ended_early"] == [{"rank": 3, "host": "node2", "time": 112.4}]


@pytest.mark.parametrize("starved", [
    lambda result: with_kills(result, {"node2": MemoryKills(2, 1536 << 20)}),
    lambda result: with_lines(result, [KernelLine("node2", 1.0, "oom", "lack of memory", "Killed process")]),
], ids=["counter", "kernel line"])  # fmt: skip
def test_memory_before_uneven_data(tmp_path: Path, starved: Callable[[LaunchResult], LaunchResult]) -> None:
    result = starved(LaunchResult(PLAN, 100.0, 114.0, failed(GLOO), {3: end(3)}, early=(end(3),)))
    text = verdict(result, RunFolder(tmp_path, "job"))
    assert "uneven data" not in text
    assert "lack of memory" in text


def test_the_verdict_names_kills_for_lack_of_memory_with_host_and_limit(tmp_path: Path) -> None:
    kills = {
        "node1": MemoryKills(2, 1536 << 20),
        "node2": MemoryKills(2, 1536 << 20),
        "node3": MemoryKills(1, None),
    }
    result = with_kills(LaunchResult(PLAN, 100.0, 114.0, None, {}), kills)
    lack = "for lack of memory during the job"
    lines = [
        f"note: the kernel killed 2 processes of each of node[1-2] {lack} (limit 1.5 GiB)",
        f"note: the kernel killed a process of node3 {lack}",
    ]
    assert [
        line.strip() for line in verdict(result, RunFolder(tmp_path, "job")).splitlines() if "kernel" in line
    ] == lines


def test_the_rank_that_failed_first_and_the_rank_that_caused_it_are_told_apart(tmp_path: Path) -> None:
    why = HangVerdict(
        "different", "ranks 0-1 were in a", "they differ: rank 3 left", hang=True, culprits=(3,)
    )
    result = LaunchResult(PLAN, 100.0, 114.0, failed(GLOO), {})
    text = verdict(result.having(Why(why)), RunFolder(tmp_path, "job"))
    assert "why: they differ: rank 3 left\n        why: rank 1 failed first, but rank 3 caused it\n" in text
    own = result.having(Why(dataclasses.replace(why, culprits=(1, 3))))
    assert "failed first" not in verdict(own, RunFolder(tmp_path, "job"))


def test_only_a_rank_that_failed_in_a_collective_has_its_record_read() -> None:
    recorded = PLAN.spec.having(WhyOptions())
    assert needed(failed(GLOO), recorded)
    assert needed(failed(LATE), recorded)
    assert not needed(failed(OWN), recorded)
    worker = (
        *SERVICE[4:6],
        "    data = self._try_get_data(timeout=timeout)\n",
        "RuntimeError: worker killed\n",
    )
    assert not needed(dataclasses.replace(failed(""), tail=worker), recorded)
    assert not needed(failed(GLOO), PLAN.spec.having(WhyOptions(no_record=True)))


def test_the_verdict_names_the_launchers_log_where_only_that_says_why(tmp_path: Path) -> None:
    asked = dataclasses.replace(failed("", "SIGTERM (15)"), terminated=True)
    result = LaunchResult(PLAN, 100.0, 114.0, asked, {}, launcher_printed=True)
    assert "and why mpirun ended it: " in verdict(result, RunFolder(tmp_path, "job"))
    silent = dataclasses.replace(result, launcher_printed=False)
    assert "launcher@" not in verdict(silent, RunFolder(tmp_path, "job"))
    by_itself = dataclasses.replace(result, failure=failed("", "SIGKILL (9)"))
    assert "launcher@" not in verdict(by_itself, RunFolder(tmp_path, "job"))
