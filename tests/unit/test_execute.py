"""What follows from what hosts report: which failure was first, and when a launch has succeeded."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.listener import Listener
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import Event, Lost, of_frame
from muster.deploy.core.connect.requests import EndedProcess, Request, Stopping
from muster.deploy.core.connect.silence import SILENCE_SECONDS
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job import loop, state
from muster.deploy.core.job import report_handlers as reports
from muster.deploy.core.job.cause import first_of
from muster.deploy.core.job.events import Emit, Output, Recorded
from muster.deploy.core.job.feature import Feature
from muster.deploy.core.job.loop import STOP_SECONDS, LaunchLoop
from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import verdict
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.features.all_features import features_of
from muster.deploy.features.samples import driver  # noqa: F401  # it names the report of a sample
from muster.deploy.features.why import diagnosis
from muster.deploy.features.why.diagnosis import RankStacks
from muster.deploy.features.why.hang_verdict import explain
from muster.deploy.features.why.options import WhyOptions
from tests.unit.attempts import attempt_of, drop
from tests.unit.plans import make_plan
from tests.waiting import wait_until

DAEMON = 'prted --prtemca ess "env"'


class FakeChannel:
    """An agent that does as told: it answers at once, and reports what the test says."""

    clock_offset = 0.0
    greeted = remote = True
    ended = False
    lost: LostError | None = None

    def __init__(self) -> None:
        self.silence = 0.0
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.unanswered: set[str] = set()
        self.stops: list[Stopping] = []
        """The first answers to requests to stop; then all is over."""

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        self.asked.append((request.name, words))
        future: Future[Any] = Future()
        if request.name in self.unanswered:
            self.silence = 10.5
        else:
            is_earlier = request.name == "stop" and self.stops
            future.set_result(self.stops.pop(0) if is_earlier else Stopping(True, ()))
        return future

    def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
        raise MusterError("nothing is known here")

    def give_up(self) -> None:
        self.asked.append(("give up", {}))

    def silent_for(self) -> float:
        return self.silence

    def excuse_silence(self) -> None:
        self.silence = 0.0


class Hosts:
    """Hosts of a plan, and the story that they tell."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.channels = {host.host.name: FakeChannel() for host in plan.hosts}
        self.events = Inbox()
        self.folder: RunFolder | None = None

    def tell(self, teller: str, event: str, **frame: Any) -> Hosts:
        said = json.loads(json.dumps({"event": event, "time": time.time(), **frame}))
        self.events.put(Event(teller, of_frame(said)))
        return self

    def start_all(self) -> Hosts:
        for placed in self.plan.ranks:
            self.start(placed.rank)
        return self

    def lose(self, host: str, why: LostError) -> Hosts:
        self.events.put(Event(host, Lost(why)))
        return self

    def start(self, rank: int, **other: Any) -> Hosts:
        placed = self.plan.ranks[rank]
        said = {"rank": rank, "local_rank": placed.local_rank, "world_size": len(self.plan.ranks), **other}
        return self.tell(said.pop("host", placed.host), "rank-start", **said)

    def end(self, *ranks: int, code: int = 0, at: float = 0.0, tail: tuple[str, ...] = ()) -> Hosts:
        for rank in ranks:
            ended = {"rank": rank, "code": code, "time": at or time.time(), "tail": tail}
            self.tell(self.plan.ranks[rank].host, "rank-end", **ended)
        return self

    def run(self, start_timeout: float = 5.0, stall_timeout: Any = 0, emit: Emit = drop) -> LaunchResult:
        channels: Any = self.channels
        cluster: Any = Listener(self.events, channels)
        cluster.facts = {}
        spec = dataclasses.replace(self.plan.spec, start_timeout=start_timeout)
        spec = spec.having(WhyOptions(no_record=True, stall_timeout=stall_timeout))
        features = features_of(spec)
        attempt = attempt_of(dataclasses.replace(self.plan, spec=spec), cluster, emit, features, self.folder)
        features.tell(Feature.begins, attempt)
        return features.revise(Feature.ended, attempt, LaunchLoop(attempt, features).run())

    def fails(self, **options: Any) -> Failure:
        failure = self.run(**options).failure
        assert failure
        return failure


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Hosts of a driver that is always late: what they have said by then counts all the same."""
    monkeypatch.setattr(state, "EARLIER_SECONDS", 0.0)
    monkeypatch.setattr(reports, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(reports, "LAUNCHER_EXIT_SECONDS", 0.0)
    return Hosts(make_plan("node[1-2] slots=2"))


def test_hosts_hear_of_a_driver_with_a_full_terminal(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-S, or in a pager that is not read. They end a job whose driver is silent."""
    monkeypatch.setattr(loop, "PING_SECONDS", 0.01)
    asked, heard = hosts.channels["node2"].asked, list[bool]()

    def wait(event: object) -> None:
        if isinstance(event, Output):
            before = len(asked)
            wait_until(lambda: [name for name, _ in asked[before:]].count("ping") > 2, "pings", patience=10.0)
            heard.append(True)

    hosts.start_all()
    hosts.tell("node1", "output", rank=0, stream="out", text="line\n")
    hosts.end(0, 1, 2, 3)
    hosts.tell("node1", "command-end", code=0)
    assert hosts.run(emit=wait).failure is None
    assert heard == [True]


def test_a_launch_succeeds_when_every_rank_and_the_launcher_ended_with_0(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.end(0, 1, 2, 3)
    hosts.tell("node1", "command-end", code=0)
    result = hosts.run()
    assert (result.exit_status, result.failure, result.notes) == (0, None, ())


SAVING = EndedProcess(rank=2, pid=7, name="python3", program=True, seconds=30.0)
UPLOAD = EndedProcess(rank=0, pid=8, name="sh", program=False, seconds=30.0)


def test_a_host_that_saves_is_asked_again_and_killed_ranks_are_named(hosts: Hosts, tmp_path: Path) -> None:
    other = dataclasses.replace(SAVING, rank=3, pid=9)
    hosts.channels["node2"].stops = [
        Stopping(False, (), saving=(2, 3)),
        Stopping(True, (), ended=(SAVING, other)),
    ]
    hosts.start_all()
    hosts.end(0, code=1)
    told: list[object] = []
    result = hosts.run(emit=told.append)
    assert [event for event in told if isinstance(event, Recorded)] == [
        Recorded("saving", [2, 3]),
        Recorded("saving", []),
    ]
    stop = ("stop", {"grace": 30.0, "patience": 0.0})
    assert [channel.asked.count(stop) for channel in hosts.channels.values()] == [1, 2]
    assert result.cleared == {"node1", "node2"}
    assert result.as_json()["killed"][0] == {"host": "node2", **dataclasses.asdict(SAVING)}
    said = verdict(result, RunFolder(tmp_path, "job"))
    assert "killed 30.0 s after SIGTERM: ranks 2-3 on node2; --grace SECONDS gives more time\n" in said


def test_after_a_job_that_is_done_hosts_wait_for_what_ranks_left_behind(hosts: Hosts, tmp_path: Path) -> None:
    hosts.channels["node1"].stops = [Stopping(True, (), ended=(UPLOAD,))]
    hosts.start_all()
    hosts.end(0, 1, 2, 3)
    hosts.tell("node1", "command-end", code=0)
    result = hosts.run()
    assert ("stop", {"grace": 30.0, "patience": 30.0}) in hosts.channels["node1"].asked
    assert result.exit_status == 0
    said = verdict(result, RunFolder(tmp_path, "job"))
    assert "left behind: sh of rank 0 on node1 (process 8), ended after 30.0 s\n" in said


def test_muster_stop_on_another_machine_gives_the_grace(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.tell("node1", "stop-asked", by="ada", grace=5)
    hosts.run()
    assert ("stop", {"grace": 5.0, "patience": 0.0}) in hosts.channels["node1"].asked


def test_a_silent_host_is_the_failure_when_the_launcher_ends_the_job(hosts: Hosts, tmp_path: Path) -> None:
    lost = hosts.channels["node2"]
    lost.unanswered = {"stop"}
    hosts.start_all()
    hosts.end(1, code=-15)
    began = time.monotonic()
    result = hosts.run()
    assert result.failure is not None
    assert result.failure.headline == "node2: silent for 10 s: frozen, or cut off from the network"
    remedy = "        look: muster check --include node2 shows whether it answers now"
    assert remedy in verdict(result, RunFolder(tmp_path, "job"))
    assert result.failure.tail == ("ended with it: rank 1 on node1: SIGTERM (15)\n",)
    assert time.monotonic() - began < STOP_SECONDS
    assert lost.asked[-1] == ("give up", {})


def test_ends_that_come_after_the_launchers_are_counted(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.tell("node1", "command-end", code=0)
    hosts.end(0, 1, 2, 3)
    assert hosts.run().exit_status == 0


def test_hosts_whose_disk_is_full_are_noted_beside_the_verdict(hosts: Hosts) -> None:
    hosts.start_all()
    for rank in (3, 2, 3):
        hosts.tell("node2", "log-ended", rank=rank, why="no space left on the disk of /home\x1b[2J")
    hosts.end(0, 1, 2, 3)
    hosts.tell("node1", "command-end", code=0)
    result = hosts.run()
    assert (result.exit_status, len(result.notes)) == (0, 1)
    assert result.notes[0].startswith("node2: no space left on the disk of /home")
    assert "the logs of ranks 2-3 end early there" in result.notes[0]
    assert "\x1b" not in result.notes[0]


def test_a_host_may_be_asked_to_have_the_job_stopped(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.tell("node1", "stop-asked", by="ada on \x1b[2Jlaptop")
    hosts.end(0, code=1)  # what the end itself brings about
    failure = hosts.fails()
    assert (failure.kind, failure.exit_status) == ("stopped", 143)
    assert failure.reason.startswith("muster stop, ada on ")
    assert failure.reason.endswith("laptop, through node1")
    assert "\x1b" not in failure.reason


def test_the_clocks_of_hosts_may_differ(hosts: Hosts) -> None:
    hosts.channels["node2"].clock_offset = 3600.0
    hosts.start_all()
    hosts.end(0, code=1, at=5000.0)
    hosts.end(3, code=3, at=5000.0 - 3600.1)
    failure = hosts.fails()
    assert failure.rank == 3


def test_a_stall_ends_with_stacks(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stacks = RankStacks({0: ("a",), 1: ("a",), 2: ("a",), 3: ("open (data.py:5)",)}, {})
    found = stacks, explain([], stalled=True)
    monkeypatch.setattr(diagnosis, "gather_explanation", lambda *words: found)
    hosts.start_all()
    for name, ranks in (("node1", (0, 1)), ("node2", (2, 3))):
        for _ in range(3):
            entries = [{"rank": rank, "cpu": 0.0, "state": "S"} for rank in ranks]
            hosts.tell(name, "sample", sample=json.dumps({"ranks": entries}))
    hosts.folder = RunFolder(tmp_path, "j")
    hosts.folder.path.mkdir()
    result = hosts.run(stall_timeout=1e-9)
    assert result.failure is not None
    assert (result.failure.kind, result.exit_status) == ("stall", 3)
    assert (tmp_path / "j" / "stacks.txt").read_text() == str(stacks)
    assert result.as_json()["why"]["headline"] == "no rank of the job is running"


def test_ranks_that_do_not_start_in_time_are_named_with_how_far_their_hosts_came(hosts: Hosts) -> None:
    hosts.tell("node1", "shell", number=7, host="node2", command=DAEMON)
    hosts.start(0)
    failure = hosts.fails(start_timeout=1e-9)
    assert failure.exit_status == 3
    said = "rank 1 (node1: mpirun started), ranks 2-3 (node2: mpirun's daemon asked for) had not started"
    assert failure.reason.startswith(said)


def test_ranks_that_start_late_on_busy_hosts_are_told_with_the_load_and_the_option(hosts: Hosts) -> None:
    hosts.start(0)
    hosts.start(1)
    for name in ("node1", "node2"):
        hosts.tell(name, "sample", sample=json.dumps({"cpus": 2, "load": 34.6, "ranks": []}))
    failure = hosts.fails(start_timeout=1e-9)
    assert failure.reason.endswith(
        " had not started after 0 s; node2 is busy (a load of 35 on 2 processors): "
        "--start-timeout SECONDS waits longer"
    )


def test_a_launcher_that_hangs_at_its_exit_is_ended_and_noted(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.end(0, 1, 2, 3)
    result = hosts.run()
    assert result.exit_status == 0
    assert "still ran" in result.notes[0]


def test_hosts_that_are_lost_together_are_all_named(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.lose("node2", LostError("ended"))
    hosts.lose("node1", LostError("ended"))
    result = hosts.run()
    assert result.failure is not None
    assert (result.failure.kind, result.failure.host, result.exit_status) == ("host", "node2", 3)
    assert result.notes == ("also lost: node1: the SSH connection to its agent is gone",)


def test_a_silent_host_is_a_failure_with_its_name_and_is_not_waited_for(hosts: Hosts) -> None:
    hosts.channels["node2"].silence = SILENCE_SECONDS + 1
    hosts.start_all()
    failure = hosts.fails()
    assert (failure.host, failure.exit_status) == ("node2", 3)
    assert "silent for 10 s" in failure.reason
    assert "stop" not in [name for name, _ in hosts.channels["node2"].asked]


@pytest.mark.parametrize(
    "report",
    [
        {"event": "output", "rank": 0, "stream": "out", "text": "evil\n"},
        {"event": "output", "rank": 99, "stream": "out", "text": "evil\n"},
        {"event": "rank-end", "rank": 0, "code": 1, "time": 0, "tail": []},
        {"event": "command-end", "code": 1, "time": 0},
        {"event": "shell-end", "code": 0, "time": 0},
        {"event": "file-have", "digest": "0" * 64, "have": 7},
    ],
)
def test_a_host_that_speaks_for_another_is_a_failure(hosts: Hosts, report: dict[str, Any]) -> None:
    hosts.events.put(Event("node2", of_frame(report)))
    result = hosts.run()
    assert result.failure is not None
    assert (result.failure.kind, result.failure.host, result.exit_status) == ("host", "node2", 3)
    assert "protocol error: " in result.failure.reason
    assert not result.ends


def test_mpirun_reaches_only_the_hosts_of_its_job(hosts: Hosts) -> None:
    hosts.tell("node1", "shell", number=7, host="node2", command=DAEMON)
    hosts.tell("node2", "shell-end", number=7, code=0)
    hosts.tell("node1", "shell", number=8, host="elsewhere", command=DAEMON)
    result = hosts.run()
    assert ("shell", {"number": 7, "command": DAEMON}) in hosts.channels["node2"].asked
    assert ("shell_end", {"number": 7, "code": 0}) in hosts.channels["node1"].asked
    assert result.failure is not None
    assert "elsewhere, which is not a host of this job" in result.failure.reason


@pytest.mark.parametrize(
    ("sender", "launcher", "command", "said"),
    [
        ("node2", "mpirun", DAEMON, "protocol error"),
        ("node1", "torchrun", DAEMON, "protocol error"),
        ("node1", "mpirun", "touch owned", "node2 does more than start its daemon: touch owned"),
    ],
)
def test_no_host_commands_another(hosts: Hosts, sender: str, launcher: str, command: str, said: str) -> None:
    hosts = Hosts(make_plan("node[1-2] slots=2", launcher=launcher))
    hosts.tell(sender, "shell", number=7, host="node2", command=command)
    failure = hosts.fails()
    assert (failure.host, said in failure.reason) == (sender, True)
    assert "shell" not in {do for channel in hosts.channels.values() for do, _ in channel.asked}


def test_the_verdict_names_rank_host_end_last_lines_and_log(hosts: Hosts, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job")
    folder.begin(hosts.plan)
    folder.on_event(Output(3, "node2", "err", "ValueError: boom\n"))
    hosts.start_all()
    hosts.end(3, code=1, tail=("\x1b[1;35mValueError\x1b[0m: boom\x1b[2J\n",))
    result = hosts.run()
    assert result.failure
    assert result.failure.tail == ("ValueError: boom\x1b[2J\n",), "no pattern has to expect colours"
    text = verdict(result, folder)
    assert text.splitlines()[1:3] == [
        "FAILED  rank 3 on node2: exit status 1",
        "        | ValueError: boom␛[2J",
    ]
    assert "ended with it: ranks 0-2" in text
    assert f"logs: {tmp_path}/job/logs/rank-0003@node2.err" in text


RANK = Failure("rank", "SIGTERM (15)", 143, host="node1", rank=0, at=10.0)
KILLED = Failure("rank", "SIGKILL (9)", 137, host="node1", rank=1, at=10.01)
RESET = (
    "RuntimeError: [./gloo/transport/tcp/pair.cc:525] Read error [10.0.0.2]:21893: Connection reset by peer"
)
LOST_PEER = Failure("rank", RESET, 1, host="node2", rank=2, at=9.9, tail=(f"{RESET}\n",))
SAVED = Failure("rank", "exit status 75", 75, host="node1", rank=0, at=10.0, terminated=True)
HOST = Failure("host", "no answer", 3, host="node3", at=10.1)
DAEMON_GONE = Failure("launcher", "its daemon ended with SIGKILL (9)", 1, host="node3", at=10.1)


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([RANK, HOST], HOST),  # mpirun noticed it before the driver
        ([RANK, DAEMON_GONE], DAEMON_GONE),
        ([SAVED, HOST], HOST),  # it handles SIGTERM
        ([LOST_PEER, dataclasses.replace(SAVED, at=10.1)], LOST_PEER),
        ([RANK, dataclasses.replace(HOST, at=11.0)], RANK),  # something else
        ([RANK, dataclasses.replace(HOST, host="node1")], RANK),
        ([dataclasses.replace(RANK, reason="exit status 1"), HOST], None),
        ([RANK, dataclasses.replace(DAEMON_GONE, host="node1")], RANK),  # mpirun itself
        ([HOST, RANK], HOST),
        ([RANK, KILLED], KILLED),  # torchrun ends the others, and the two ends are noted in any order
        ([RANK, dataclasses.replace(KILLED, at=10.2)], RANK),  # mpirun, for a rank that SIGTERM does not end
        ([dataclasses.replace(RANK, reason="exit status 1"), KILLED], None),
        ([LOST_PEER, KILLED], KILLED),  # its peer saw the closed connection first
        ([LOST_PEER, RANK, dataclasses.replace(LOST_PEER, rank=3, at=10.0)], LOST_PEER),
        ([LOST_PEER, dataclasses.replace(KILLED, at=10.3)], LOST_PEER),  # the launcher killed it
        ([], None),
    ],
)
def test_ranks_that_the_launcher_ends_are_no_cause(failures: list[Failure], first: Failure | None) -> None:
    assert first_of(failures, "node1") == (first or (failures[0] if failures else None))


def lingers(
    hosts: Hosts, rank: int, *, error: str = "ValueError: boom", at: float = 0.0, **more: Any
) -> Hosts:
    said = {"error": [error] if error else [], "alive": ["thread 'w' in f (a.py:3)"], "ends_in": 60.0, **more}
    return hosts.tell(hosts.plan.ranks[rank].host, "program-over", rank=rank, time=at or time.time(), **said)


def ends(event: str, **frame: Any) -> Callable[[Hosts], Hosts]:
    """A launcher ends, just before a rank of which the driver hears first."""

    def happens(hosts: Hosts) -> Hosts:
        hosts.tell("node1", "shell", number=3, host="node1", command=DAEMON).start_all()
        return hosts.end(2, code=-15, at=1000.2).tell("node1", event, time=1000.1, **frame)

    return happens


STORIES: dict[str, tuple[Callable[[Hosts], Hosts], str, dict[str, Any]]] = {
    "mpirun exits with 0, and ranks have not ended": (
        lambda hosts: hosts.start_all().end(0, 1).tell("node1", "command-end", code=0),
        "without an end of rank 2 (node2), rank 3 (node2)",
        {"exit_status": 1},
    ),
    "a host that is not the head passes a stop on": (
        lambda hosts: hosts.start_all().tell("node2", "stop-asked", by="ada"),
        "it says that somebody stops the job, which only the head can know",
        {"kind": "host", "host": "node2"},
    ),
    "all ranks start on one of two hosts": (
        lambda hosts: hosts.start(2, host="node1", local_rank=2),
        "rank 2 on node1: it started as local rank 2 on node1 in a world of 4; planned: local rank 0",
        {"kind": "placement"},
    ),
    "worlds of one rank each": (
        lambda hosts: hosts.start(0, world_size=1),
        "in a world of 1; planned: local rank 0 on node1 in a world of 4",
        {},
    ),
    "the first failure is reported last": (
        lambda hosts: hosts.start_all().end(0, code=1, at=1000.2, tail=("peer",)).end(3, code=3, at=1000.1),
        "",
        {"rank": 3, "host": "node2", "exit_status": 3},
    ),
    "a signal has the status that a shell gives it": (
        lambda hosts: hosts.start_all().end(2, code=-9),
        "",
        {"reason": "SIGKILL (9)", "exit_status": 137},
    ),
    "the kernel kills a rank": (
        lambda hosts: hosts.start_all().tell(
            "node2", "rank-end", rank=2, tail=[], code=-9, out_of_memory={"limit": 256 << 20}
        ),
        "SIGKILL (9): out of memory, the kernel chose it (limit 256 MiB)",
        {"rank": 2, "exit_status": 137},
    ),
    "the kernel kills mpirun": (
        lambda hosts: hosts.start_all().tell("node1", "command-end", code=-9, out_of_memory={"limit": None}),
        "",
        {"reason": "mpirun ended with SIGKILL (9): out of memory, the kernel chose it"},
    ),
    "what ends because it was stopped is no failure of its own": (
        lambda hosts: hosts.start_all().end(2, code=1, at=1000.0).tell("node1", "command-end", code=1),
        "",
        {"rank": 2},
    ),
    "mpirun ends before any rank, and is quoted": (
        lambda hosts: hosts.tell("node1", "launcher", stream="err", text="not enough slots\n").tell(
            "node1", "command-end", code=213
        ),
        "without a start of rank 0 (node1), rank 1 (node1)",
        {"exit_status": 213, "tail": ("not enough slots",)},
    ),
    "an agent is killed": (
        lambda hosts: hosts.start_all().lose(
            "node2", LostError("its agent was killed there", kind="agent.killed")
        ),
        "",
        {"headline": "node2: its agent was killed there"},
    ),
    "a host is cut off for what it sent": (
        lambda hosts: hosts.start_all().lose(
            "node2", LostError("protocol error: cores", kind="host.protocol-error", host="node2")
        ),
        "",
        {"headline": "node2: protocol error: cores"},
    ),
    "mpirun is killed, and its ranks are no cause": (
        ends("command-end", code=-9),
        "mpirun ended with SIGKILL (9)",
        {"kind": "launcher", "host": "node1"},
    ),
    "orted is killed": (ends("daemon-end", name="orted", code=-9), "orted ended with SIGKILL (9)", {}),
    "its daemon ends": (ends("shell-end", code=255), "mpirun's daemon ended with exit status 255", {}),
    "a host tells of another host's program": (
        lambda hosts: hosts.tell("node2", "program-over", rank=0, time=1.0, error=["x"], alive=[]),
        "a report of rank 0, which the plan does not have there",
        {},
    ),
    "a rank hides its exception behind status 0, as by os._exit(0) in a thread": (
        lambda hosts: lingers(hosts.start_all(), 3).end(0, 1, 2, 3),
        "",
        {"headline": "rank 3 on node2: ValueError: boom", "exit_status": 1},
    ),
    "mpirun asks for a second daemon on a host": (
        lambda hosts: hosts.tell("node1", "shell", number=7, host="node2", command=DAEMON).tell(
            "node1", "shell", number=8, host="node2", command=DAEMON
        ),
        "",
        {"reason": "mpirun asked for a second daemon on node2"},
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_failure_is_told(hosts: Hosts, story: str) -> None:
    happens, says, expected = STORIES[story]
    failure = happens(hosts).fails()
    assert {name: getattr(failure, name) for name in expected} == expected
    assert says in failure.headline, failure.headline


def test_an_exception_that_a_live_thread_hides_is_the_cause_of_what_follows(hosts: Hosts) -> None:
    hosts.start_all()
    lingers(hosts, 3, at=1000.0)
    hosts.end(1, code=1, at=1001.0, tail=("Connection closed by peer\n",))
    result = hosts.run()
    assert result.failure
    assert result.failure.headline == "rank 3 on node2: ValueError: boom"
    assert result.failure.tail == ("ValueError: boom\n",)
    assert any("ValueError: boom; its process is kept alive by " in note for note in result.notes)


def test_a_rank_that_ends_by_itself_after_its_exception_is_like_any_other(hosts: Hosts) -> None:
    hosts.start_all()
    lingers(hosts, 3)
    hosts.end(3, code=1, tail=("ValueError: boom\n",))
    result = hosts.run()
    assert result.failure
    assert (result.failure.headline, result.notes) == ("rank 3 on node2: exit status 1", ())


def test_a_rank_that_was_ended_after_its_exception_is_explained(hosts: Hosts) -> None:
    hosts.start_all()
    lingers(hosts, 3)
    lingers(hosts, 3, ended=True)
    hosts.end(3, code=1)
    (note,) = hosts.run().notes
    assert note.endswith("kept alive by thread 'w' in f (a.py:3), and ended 60 s after the exception")


def test_a_rank_that_cannot_end_itself_is_ended(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LATE_SECONDS", 0.0)
    hosts.start_all()
    lingers(hosts, 3, ends_in=0.0)
    failure = hosts.fails()
    assert failure.headline == "rank 3 on node2: ValueError: boom"


def test_a_program_that_is_over_and_whose_rank_ends_well_is_no_failure(hosts: Hosts) -> None:
    hosts.start_all()
    lingers(hosts, 3, error="", ends_in=0.0)
    hosts.end(0, 1, 2, 3)
    hosts.tell("node1", "command-end", code=0)
    result = hosts.run()
    assert (result.failure, result.notes) == (None, ())
