"""Which programs stall, by the rule of launch, status and top: phases of three ranks."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest

from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import ProgramOver
from muster.deploy.core.connect.requests import MISSING, STORE, Missing, Nothing, Request
from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample, TrainingSample
from muster.deploy.core.job.events import Event, JobEvent, Output
from muster.deploy.core.job.result import Failure, RankExit
from muster.deploy.core.job.state import EndedButAlive
from muster.deploy.core.text.fold import fold
from muster.deploy.features.why import diagnosis, stall_watch
from muster.deploy.features.why import gather as evidence
from muster.deploy.features.why.diagnosis import gather_stacks
from muster.deploy.features.why.gather import begun
from muster.deploy.features.why.hang_verdict import explain
from muster.deploy.features.why.messages import (
    SETUP,
    Arrivals,
    GroupArrivals,
    RecordedCall,
    StackLine,
    stall_text,
)
from muster.deploy.features.why.positions import Positions, Rank
from muster.deploy.features.why.stall import StallRule, at_work
from muster.deploy.features.why.stall_watch import Begun, StallWatch
from muster.deploy.features.why.waiting_ranks import waited
from tests.hangs.capture import RECORDS, records_of
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan
from tests.unit.test_why import GOLDEN

RANKS = (0, 1, 2)
EVERY, FLOOR = 2, 60.0


@dataclass(frozen=True)
class Phase:
    """A time in which all ranks behave the same.

    `cpu`: cores of each rank. `steps`: seconds between two steps; `lines`: between two other printed lines.
    `waits`: the ranks that wait in one collective all the time.
    """

    seconds: int
    cpu: tuple[float, float, float] = (0.0, 0.0, 0.0)
    steps: int = 0
    lines: int = 0
    waits: tuple[int, ...] = ()
    moved: float = 0.0
    disk: float = 0.0
    gpu: float = 0.0
    state: str = "S"
    host: str = "node1"


TRAINS = Phase(300, (1.0, 1.0, 1.0), steps=4)
COMPUTES, IDLE = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)


def notes(phases: tuple[Phase, ...], *, recorded: bool = True) -> list[tuple[int, int]]:
    """When each stall was noted, and when it ended (0: never): seconds since the start of the phase."""
    rule, at, noted = StallRule(FLOOR, 0.0), 0, []
    for phase in phases:
        began = at
        for at in range(began + EVERY, began + phase.seconds + 1, EVERY):
            if phase.steps and (at - began) % phase.steps == 0:
                rule.progressed(at, step=True)
            if phase.lines and (at - began) % phase.lines == 0:
                rule.progressed(at)
            rule.sampled(_sample(at, phase), {rank: rank for rank in RANKS})
            if rule.must_check(at, RANKS, recorded=recorded):
                waits = {rank: float(at - began) for rank in phase.waits} if recorded else {}
                if rule.judge(at, RANKS, waits):
                    noted.append((at - began, 0))
            if noted and not noted[-1][1] and rule.ended:
                noted[-1] = (noted[-1][0], at - began)
    return noted


def _sample(at: int, phase: Phase) -> HostSample:
    ranks = tuple(
        RankSample(rank, cpu=phase.cpu[rank], state=phase.state, read=phase.moved) for rank in RANKS
    )
    gpus = tuple(GpuSample(rank, utilisation=phase.gpu) for rank in RANKS)
    return HostSample(at, phase.host, disk_read=phase.disk, ranks=ranks, gpus=gpus)


HANGS = {
    "rank 2 never comes to a collective": Phase(400, waits=(0, 1)),
    "the same, and the others poll, as under MPI and CUDA": Phase(400, (1.0, 1.0, 0.0), waits=(0, 1)),
    "all ranks poll in different collectives": Phase(400, COMPUTES, waits=RANKS),
    "a rank is stopped, and the others poll": Phase(400, (1.0, 1.0, 0.0), waits=(0, 1), state="T"),
    "a file system does not answer": Phase(400, waits=(0, 1), state="D"),
    "a helper thread wakes up": Phase(400, (0.02, 0.02, 0.02), waits=(0, 1)),
}
HEALTHY = {
    "steps of 4 s": (TRAINS, TRAINS),
    "imports and compilation on the processor": (Phase(900, COMPUTES), TRAINS),
    "rank 0 compiles while the others wait": (Phase(900, (1.0, 0.0, 0.0), waits=(1, 2)), TRAINS),
    "a download of 4 minutes before the first step": (Phase(240, waits=(1, 2)), TRAINS),
    "the first data from a slow disk": (Phase(600, moved=1e6, state="D"), TRAINS),
    "pages of a mapped file from a slow disk": (Phase(600, disk=1e6, state="D"), TRAINS),
    "rank 0 evaluates for 15 minutes, and the others wait": (
        TRAINS,
        Phase(900, (1.0, 0.0, 0.0), waits=(1, 2)),
        TRAINS,
    ),
    "the same, and the others poll": (TRAINS, Phase(900, COMPUTES, waits=(1, 2)), TRAINS),
    "a checkpoint that writes for 5 minutes": (TRAINS, Phase(300, moved=1e8, waits=(1, 2)), TRAINS),
    "long steps without output": (TRAINS, Phase(3600, COMPUTES), TRAINS),
    "a GPU computes, and the processors sleep": (TRAINS, Phase(900, gpu=0.9, waits=(0,)), TRAINS),
    "all ranks sleep for 4 minutes between epochs": (TRAINS, Phase(240), TRAINS),
    "data comes 50 s late": (TRAINS, Phase(50, waits=(0, 1)), TRAINS),
    "other jobs take the processors": (TRAINS, Phase(900, (0.02, 0.02, 0.02), state="R"), TRAINS),
    "one thread holds the GIL": (TRAINS, Phase(900, (0.1, 0.1, 0.1)), TRAINS),
    "prints every minute, and sleeps": (Phase(3600, lines=60),),
}


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_a_hang_is_noted_after_a_minute_and_once(hang: Phase) -> None:
    assert notes((TRAINS, hang)) in ([(60, 0)], [(62, 0)])


@pytest.mark.parametrize("healthy", HEALTHY.values(), ids=HEALTHY)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_healthy_program_is_never_accused(healthy: tuple[Phase, ...], *, recorded: bool) -> None:
    assert notes(healthy, recorded=recorded) == []


BUSY_SECOND = (GpuSample(0, utilisation=0.0), GpuSample(1, utilisation=1.0))


@pytest.mark.parametrize(
    ("local_rank", "gpus", "works"),
    [
        (0, None, False),  # that of its local rank
        (1, None, True),
        (2, None, True),  # it shares a GPU: any may be its own
        (0, (1,), True),  # by CUDA_VISIBLE_DEVICES
        (1, (0,), False),
        (1, (), False),  # nvidia-smi names other processes on them
        (3, (0, 1), True),
    ],
)
def test_a_sleeping_rank_with_a_gpu(local_rank: int, gpus: tuple[int, ...] | None, *, works: bool) -> None:
    entry = RankSample(5, cpu=0.0, state="S", gpus=gpus)
    assert at_work(entry, HostSample(1.0, "node1", gpus=BUSY_SECOND, ranks=(entry,)), local_rank) is works


def test_where_no_rank_is_known_to_wait_a_stall_is_noted_after_five_minutes() -> None:
    assert notes((TRAINS, Phase(900, waits=(0, 1))), recorded=False) == [(300, 0)]
    assert notes((TRAINS, Phase(900))) == [(300, 0)]


def test_before_the_first_step_a_stall_is_noted_after_five_minutes() -> None:
    assert notes((Phase(20, COMPUTES, lines=2), Phase(900, waits=(0, 1)))) == [(300, 0)]


def test_the_end_of_a_stall_is_noted_and_a_break_of_that_length_is_usual_then() -> None:
    pause = Phase(130, waits=(0, 1))
    assert notes((TRAINS, pause, TRAINS)) == [(60, 4)]
    assert notes((TRAINS, pause, TRAINS, pause, TRAINS)) == [(60, 4)]


def test_a_line_of_a_warning_ends_no_wait_in_a_collective() -> None:
    hang = Phase(100, waits=(0, 1))
    assert notes((TRAINS, hang, Phase(600, lines=60, waits=(0, 1)))) == [(60, 0)]


def test_a_step_in_steps_jsonl_is_progress() -> None:
    rule = StallRule(FLOOR, 0.0)
    for at in range(2, 400, 2):
        sample = HostSample(at, "node1", ranks=(RankSample(0, cpu=0.0),), training=TrainingSample(at // 50))
        rule.sampled(sample, {0: 0})
        assert not rule.must_check(at, [0], recorded=True)


def test_collectives_from_before_a_stall_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a long job are asked rarely: the last numbers may be much older than the stall."""
    events, watch = list[Event](), StallWatch()
    watch.begins(attempt_of(make_plan("node1 slots=3", stall_note=FLOOR), emit=events.append))
    clock = {"now": time.time()}
    monkeypatch.setattr(stall_watch, "now", lambda: clock["now"])

    def after(seconds: float, collectives: int, age: float = 0.0) -> list[str]:
        """The notes, once each rank has slept for so long; its last collective began `age` seconds ago."""
        for _ in range(int(seconds)):
            clock["now"] += 1
            watch.on_event(_sample(int(clock["now"]), Phase(0)))
        if not events:
            answer = Future[Any]()
            answer.set_result(({0: FLOOR}, explain([], stalled=True)))
            watch._judge(answer, clock["now"])
        watch.on_event(Begun(dict.fromkeys(RANKS, collectives), clock["now"] - age))
        return [event.type for event in events if isinstance(event, JobEvent)]

    assert after(0, 40) == []
    assert after(2 * FLOOR, 90, age=FLOOR) == ["steps.stopped"]
    assert after(FLOOR, 90) == ["steps.stopped"]
    assert after(1, 91) == ["steps.stopped", "steps.resumed"]


def test_an_answer_that_comes_late_is_no_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collectives of steps that ended long ago: the stall is noted as soon as without the answer."""
    clock, watch = 1000.0, StallWatch()
    monkeypatch.setattr(stall_watch, "now", lambda: clock)
    watch.begins(attempt_of(make_plan("node1 slots=3", stall_note=FLOOR)))
    watch.on_event(_sample(1000, TRAINS))
    watch._rule.progressed(clock, step=True)
    for clock in range(1002, 1064, 2):
        watch.on_event(_sample(clock, Phase(0)))
        if clock == 1040:
            watch.on_event(Begun(dict.fromkeys(RANKS, 40), 1000.0))
        assert watch._rule.must_check(clock, RANKS, recorded=True) == (clock >= 1060)


def test_what_a_rank_reads_to_answer_a_look_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank imports a module for the answer."""
    monkeypatch.setattr(stall_watch, "now", lambda: 1000.0)
    watch = StallWatch()
    watch.begins(attempt_of(make_plan("node1 slots=3", stall_note=FLOOR)))
    watch._rule.progressed(1000.0, step=True)
    for at in range(1002, 1062, 2):
        watch.on_event(_sample(at, Phase(0)))
    assert watch._rule.must_check(1060, RANKS, recorded=True)
    watch._answer = Future[Any]()
    watch.on_event(_sample(1062, Phase(0, moved=1e6)))
    watch._answer, watch._answered = None, 1063.0
    watch.on_event(_sample(1064, Phase(0, moved=1e6)))
    assert watch._rule.judge(1064, RANKS, {0: FLOOR, 1: FLOOR})


def test_a_stall_time_out_below_the_time_of_a_note_is_the_time_of_the_note() -> None:
    watch = StallWatch()
    watch.begins(attempt_of(make_plan("node1 slots=3", stall_note=FLOOR, stall_timeout=15)))
    assert watch._floor == 15.0


def test_without_samples_of_a_rank_nothing_is_noted() -> None:
    rule = StallRule(FLOOR, 0.0)
    rule.progressed(1.0, step=True)
    assert rule.must_check(900.0, RANKS, recorded=True)
    assert not rule.judge(900.0, RANKS, {0: 800.0, 1: 800.0})


def test_a_collective_that_a_gpu_has_not_begun_is_no_wait() -> None:
    """All ranks have called it: their GPUs may compute before it."""
    ranks = records_of(RECORDS / "reads_data-gloo.json.gz")
    evidence = ranks[0].evidence
    assert evidence
    call = RecordedCall("i", "0", "torch", 1, evidence.now - 100, "all_reduce")
    alike = [Rank(rank.number, rank.host, type(evidence)(now=evidence.now, trace=(call,))) for rank in ranks]
    assert waited(Positions(alike)) == {}


@pytest.mark.parametrize(("hang", "backend"), GOLDEN, ids=[f"{hang.program}-{name}" for hang, name in GOLDEN])
def test_ranks_of_real_hangs_wait_and_their_cause_fits_in_a_line(hang: object, backend: str) -> None:
    ranks = records_of(RECORDS / f"{getattr(hang, 'program', '')}-{backend}.json.gz")
    waits, verdict = waited(Positions(ranks)), explain(ranks, stalled=True)
    assert {*verdict.waiting} <= waits.keys()
    assert "\n" not in verdict.summary


def test_a_rank_that_does_not_come_is_named_with_its_line_and_the_collective() -> None:
    summary = explain(records_of(RECORDS / "reads_data-gloo.json.gz"), stalled=True).summary
    assert stall_text(96.0, summary) == (
        "no step for 1 min 36 s: rank 2 on localhost has not come to all_reduce #7 of group 0 (3.9 KiB, "
        "reads_data.py:12): it is in read_shard (reads_data.py:5)"
    )


IN_TORCH = StackLine("linear", "torch/nn/modules/linear.py", 134, False)


@pytest.mark.parametrize("loops", [True, False])
def test_an_endless_loop_counts_where_all_wait(monkeypatch: pytest.MonkeyPatch, *, loops: bool) -> None:
    ranks = records_of(RECORDS / "endless_loop-gloo.json.gz")
    (odd,) = (rank for rank in ranks if rank.number == 2)
    assert odd.evidence
    frames = odd.evidence.frames if loops else (IN_TORCH, *odd.evidence.frames)
    looks = [
        [
            replace(odd, evidence=replace(odd.evidence, frames=frames)) if rank is odd else rank
            for rank in ranks
        ]
        for _ in range(9)
    ]
    monkeypatch.setattr(diagnosis, "gather", lambda *_: (looks.pop(), {}))
    monkeypatch.setattr(diagnosis, "BETWEEN_LOOKS", 0.0)
    waits, verdict = diagnosis.gather_waits(make_plan("localhost slots=3"), {})
    assert waits.keys() == ({0, 1, 2} if loops else {0, 1})
    assert verdict.culprits == (2,)


def test_a_rank_that_leaves_the_function_is_in_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = records_of(RECORDS / "endless_loop-gloo.json.gz")
    moved = [replace(rank, evidence=replace(rank.evidence, frames=())) for rank in ranks if rank.evidence]
    looks = [moved, ranks, ranks]
    monkeypatch.setattr(diagnosis, "gather", lambda *_: (looks.pop() if looks else moved, {}))
    monkeypatch.setattr(diagnosis, "BETWEEN_LOOKS", 0.0)
    assert diagnosis.gather_waits(make_plan("localhost slots=3"), {})[0].keys() == {0, 1}


def test_a_collective_that_a_call_and_a_backend_count_is_one() -> None:
    tracks = (
        GroupArrivals("0", "call", 4, (), (), ()),
        GroupArrivals("0", "torch", 4, (), (), ()),
        GroupArrivals("1", "call", 2, (), (), ()),
        GroupArrivals(SETUP, "call", 3, (), (), ()),
    )
    assert begun(Arrivals(tracks=tracks)) == 6


# -- what counts as a stall: nothing moves, or a rank is stopped; computing in silence is none --


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
def test_a_busy_gpu_is_work(job: Job, gpus: tuple[int, ...] | None, busy: float, *, stalled: bool) -> None:
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
def test_a_stopped_rank_is_named_though_others_work(job: Job, state: str, said: str) -> None:
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


# -- RankStacks of many ranks as few --


WAITS = [
    ["all_reduce", "torch/distributed.py", 10, False],
    ["<module>", "train.py", 3, True],
    ["_run", "<frozen runpy>", 8, False],
]
OPENS = [["open_shard", "data.py", 5, True], ["<module>", "train.py", 2, True]]


class FakeChannel:
    """An agent with the stacks of its ranks in its answer, or without an answer."""

    def __init__(self, host: str, stacks: Any, *, has_tool: bool = True) -> None:
        self.host, self.stacks, self.has_tool = host, stacks, has_tool
        self.stored: list[bytes] = []

    def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
        if request is MISSING:
            return Missing(() if self.has_tool else words["digests"])
        if request is STORE:
            self.stored.append(payload)
            return Nothing()
        if self.stacks is None:
            raise LostError("the SSH connection broke", host=self.host)
        process = {"pid": 7, "state": "S"}
        ranks = {rank: {"now": 1.0, "process": process, **stack} for rank, stack in self.stacks.items()}
        return request.read({"ranks": ranks})


def test_equal_stacks_are_one_and_the_odd_one_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "own_py_spy", lambda: b"py-spy")
    hosts: Any = {
        "node1": FakeChannel("node1", {str(rank): {"frames": WAITS} for rank in (0, 1, 2, 3)}),
        "node2": FakeChannel("node2", {"4": {"frames": OPENS}, "5": {"frames": WAITS}}, has_tool=False),
    }
    found = gather_stacks("job", hosts)
    assert str(found).splitlines() == [
        "ranks 0-3,5:",
        "    all_reduce (torch/distributed.py:10)",
        "    <module> (train.py:3)",
        "rank 4:",
        "    open_shard (data.py:5)",
        "    <module> (train.py:2)",
    ]
    assert [len(channel.stored) for channel in hosts.values()] == [0, 1], "it travels where it is missing"


def test_a_host_that_gives_none_says_why_and_the_others_are_shown() -> None:
    hosts: Any = {
        "node1": FakeChannel("node1", {"0": {"error": "Permission Denied: Try running again"}}),
        "node2": FakeChannel("node2", None),
    }
    text = str(gather_stacks("job", hosts))
    assert "ptrace(2) is forbidden there: give the container the capability SYS_PTRACE" in text
    assert "node2: the SSH connection broke" in text


def test_what_most_share_comes_first() -> None:
    assert fold([(1, "b"), (2, "a"), (3, "a")]) == [([2, 3], "a"), ([1], "b")]
    assert fold(list[tuple[int, Future[None]]]()) == []
