"""What counts as a stall: nothing moves, or a rank is stopped; computing in silence is none."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from muster.deploy.core.connect.reports import ProgramOver
from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample
from muster.deploy.core.job.events import Output
from muster.deploy.core.job.result import Failure, RankExit
from muster.deploy.core.job.state import EndedButAlive
from muster.deploy.features.why.hang_verdict import explain
from muster.deploy.features.why.stall_watch import StallWatch
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan


class Job:
    """Four ranks on two hosts that have started, and a clock that tests turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("muster.deploy.features.why.stall_watch.now", lambda: self.now)
        attempt = attempt_of(make_plan("node[1-2] slots=2", stall_timeout=10.0, stall_note=5.0))
        self.state = attempt.state
        self.state.started = {0, 1, 2, 3}
        self.stall = StallWatch()
        self.stall.begins(attempt)

    def pass_time(self, seconds: float, *, busy: float = 0.0, states: str = "SSSS") -> None:
        """Samples every two seconds; `busy`: the share of a core that rank 3 uses, and only it."""
        for _ in range(int(seconds / 2)):
            self.now += 2.0
            for host, ranks in (("node1", (0, 1)), ("node2", (2, 3))):
                entries = (RankSample(r, busy * (r == 3), state=states[r]) for r in ranks)
                self.stall.on_event(HostSample(self.now, host, ranks=tuple(entries)))

    @property
    def failure(self) -> Failure | None:
        return self.state.failures[0] if self.state.failures else None


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_a_job_in_which_nothing_moves_is_stalled(job: Job) -> None:
    job.pass_time(10)
    assert job.failure is None
    job.pass_time(4)
    assert job.failure
    assert (job.failure.kind, job.failure.exit_status) == ("stall", 3)
    assert job.failure.reason == "no rank has printed anything or used its processor for 10 s"


def test_one_rank_that_computes_in_silence_is_enough(job: Job) -> None:
    job.pass_time(60, busy=0.5)
    assert job.failure is None


def test_threads_that_only_look_after_others_are_no_work(job: Job) -> None:
    job.pass_time(14, busy=0.02)
    assert job.failure


@pytest.mark.parametrize(
    ("gpus", "busy", "stalled"),
    [((1,), 0.9, False), ((1,), 0.01, True), ((0,), 0.9, True), ((), 0.9, True), (None, 0.9, False)],
)
def test_a_gpu_that_a_rank_uses_and_that_computes_is_work(
    job: Job, gpus: tuple[int, ...] | None, busy: float, *, stalled: bool
) -> None:
    on_host = (GpuSample(0, utilisation=0.0), GpuSample(1, utilisation=busy))
    for _ in range(7):
        job.pass_time(2)
        ranks = (RankSample(2, 0.0, state="S"), RankSample(3, 0.0, state="S", gpus=gpus))
        job.stall.on_event(HostSample(job.now, "node2", gpus=on_host, ranks=ranks))
    assert bool(job.failure) is stalled


def test_what_is_printed_is_work(job: Job) -> None:
    for _ in range(6):
        job.pass_time(8)
        job.stall.on_event(Output(0, "node1", "out", "step 1\n"))
    assert job.failure is None


@pytest.mark.parametrize(("state", "said"), [("T", "stopped (SIGSTOP)"), ("D", "stuck in the kernel")])
def test_a_rank_that_is_stopped_or_stuck_is_named_though_the_others_work(
    job: Job, state: str, said: str
) -> None:
    job.pass_time(14, busy=1.0, states=f"SS{state}R")
    assert job.failure
    assert (job.failure.rank, job.failure.host) == (2, "node2")
    assert said in job.failure.reason


def test_where_nothing_moves_the_rank_that_is_stopped_is_named(job: Job) -> None:
    job.pass_time(10)
    job.pass_time(4, states="SSTS")
    assert job.failure
    assert (job.failure.rank, job.failure.host) == (2, "node2")
    assert job.failure.reason.startswith("stopped (SIGSTOP), and no rank has printed anything")


def test_a_rank_that_waits_for_its_disk_now_and_then_is_not_stuck(job: Job) -> None:
    for _ in range(6):
        job.pass_time(8, busy=1.0, states="SSDR")
        job.pass_time(2, busy=1.0, states="SSRR")
    assert job.failure is None


def test_ranks_that_have_ended_are_not_waited_for(job: Job) -> None:
    job.state.ends = {rank: RankExit(placed, 0, at=0.0) for rank, placed in job.state.placed.items()}
    job.pass_time(30)
    assert job.failure is None


def test_where_nothing_moves_the_rank_whose_program_is_over_is_named(job: Job) -> None:
    over = ProgramOver(2, 0.0, error=(), alive=("thread 'writer' in save (train.py:3)",))
    job.state.program_over(EndedButAlive(job.state.placed[2], 0.0, over))
    job.pass_time(14)
    assert job.failure
    assert (job.failure.rank, job.failure.host) == (2, "node2")
    alive = "is kept alive by thread 'writer' in save (train.py:3), and no rank has printed anything"
    assert alive in job.failure.reason


@pytest.mark.parametrize("steps_again", [False, True])
def test_a_stall_that_was_noted_counts_though_a_rank_computes(job: Job, *, steps_again: bool) -> None:
    """Ranks 0 to 2 wait for rank 3 in a collective."""
    verdict = replace(explain([], stalled=True), waiting=(0, 1, 2), summary="rank 3 has not come")
    answer = Future[Any]()
    answer.set_result((dict.fromkeys(range(4), 60.0), verdict))
    job.stall.on_event(Output(0, "node1", "out", "step 1 loss 0.3\n"))
    job.pass_time(6, busy=1.0)
    job.stall._judge(answer, job.now)
    job.pass_time(4, busy=1.0)
    assert job.failure is None
    if steps_again:
        job.stall.on_event(Output(0, "node1", "out", "step 2 loss 0.2\n"))
    job.pass_time(2, busy=1.0)
    said = job.failure.reason if job.failure else ""
    assert said == ("" if steps_again else "no step for 12 s: rank 3 has not come")
