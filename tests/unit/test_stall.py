"""What counts as a stall: nothing moves, or a rank is stopped; computing in silence is none."""

from __future__ import annotations

import pytest

from muster.deploy.connect.reports import ProgramOver, Pulse, Pulses
from muster.deploy.hosts.samples import GpuSample, HostSample, RankSample
from muster.deploy.launch.result import Failure, RankExit
from muster.deploy.launch.state import ImpossibleReport, LaunchState, Lingering
from muster.deploy.launch.watchdogs import StallWatchdog
from tests.unit.plans import make_plan


class Job:
    """Four ranks on two hosts that have started, and a clock that tests turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("muster.deploy.launch.watchdogs.time.monotonic", lambda: self.now)
        self.state = LaunchState(make_plan("node[1-2] slots=2"))
        self.state.started = {0, 1, 2, 3}
        self.stall = StallWatchdog(self.state, 10.0)

    def pass_time(self, seconds: float, *, busy: float = 0.0, states: str = "SSSS") -> None:
        """Pulses every two seconds; `busy`: the share of a core that rank 3 uses, and only it."""
        for _ in range(int(seconds / 2)):
            self.now += 2.0
            for host, ranks in (("node1", (0, 1)), ("node2", (2, 3))):
                pulse = {str(r): Pulse(self.now * busy * (r == 3), states[r]) for r in ranks}
                self.stall.pulse(host, Pulses(pulse))

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
    [((1,), 0.9, False), ((1,), 0.01, True), ((0,), 0.9, True), ((), 0.9, True), (None, 0.9, True)],
)
def test_a_gpu_that_a_rank_uses_and_that_computes_is_work(
    job: Job, gpus: tuple[int, ...] | None, busy: float, *, stalled: bool
) -> None:
    on_host = (GpuSample(0, utilisation=0.0), GpuSample(1, utilisation=busy))
    for _ in range(7):
        job.pass_time(2)
        ranks = (RankSample(2), RankSample(3, gpus=gpus), RankSample(9, gpus=(1,)))
        job.stall.sampled(HostSample(1.0, "node2", gpus=on_host, ranks=ranks))
    assert bool(job.failure) is stalled


def test_what_is_printed_is_work(job: Job) -> None:
    for _ in range(6):
        job.pass_time(8)
        job.stall.printed()
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
    job.state.program_over(Lingering(job.state.placed[2], 0.0, over))
    job.pass_time(14)
    assert job.failure
    assert (job.failure.rank, job.failure.host) == (2, "node2")
    alive = "its process lives: thread 'writer' in save (train.py:3), and no rank has printed anything"
    assert alive in job.failure.reason


def test_a_host_speaks_for_its_own_ranks(job: Job) -> None:
    with pytest.raises(ImpossibleReport, match="rank 3, which the plan does not have there"):
        job.stall.pulse("node1", Pulses({"3": Pulse(0.0, "T")}))
