"""Which failures of two attempts are the same one, and what a verdict then shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from muster.deploy.core.job.restart_policy import early_failure, failed_host, first_alike
from muster.deploy.core.job.result import Failure, LaunchResult, RankExit
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import verdict
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
def test_a_failure_repeats_itself_in_the_same_line_or_without_a_traceback_in_the_same_words(
    first: LaunchResult, second: LaunchResult, same: bool
) -> None:
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
def test_what_does_not_come_from_the_program_or_comes_after_a_step_is_no_early_failure(
    result: LaunchResult,
) -> None:
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
