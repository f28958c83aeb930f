"""The agent of a host, run as the driver runs it: whatever happens, nothing is left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from muster.deploy.core.agent import processes
from muster.deploy.core.agent import supervisor as attempt
from muster.deploy.core.agent.ending import Ending
from muster.deploy.core.agent.local_socket import LocalSocket
from muster.deploy.core.agent.ranks import Ranks
from muster.deploy.core.connect.bootstrap import BOOTSTRAP
from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import CommandEnd, LauncherLine, RankEnded, RankOutput, StopAsked
from muster.deploy.core.connect.requests import FACTS, PREPARE, START
from muster.deploy.core.connect.transports.process import LocalPipe, ProcessPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.wire import limits as limits_of_hosts
from muster.deploy.core.wire.clock import now, steady
from muster.deploy.core.wire.job_folders import JobFolders
from muster.deploy.core.wire.limits import LONGEST_TMPDIR
from muster.deploy.core.wire.protocol import TERM_TO_RANKS
from muster.deploy.features.adhoc import command as fanout
from muster.deploy.features.adhoc.on_host import run_command as commands
from tests.agents import job_in
from tests.ending import end
from tests.processes import is_alive, trees, wait_until_gone
from tests.waiting import PATIENCE, wait_until

Kind = TypeVar("Kind")

# Leaves its process group and session, ignores SIGTERM, and is adopted by the agent.
DAEMON = (
    "import os,signal,sys,time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork(): sys.exit()\n"
    "os.setsid()\n"
    "if os.fork(): sys.exit()\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "time.sleep(60)\n"
)
# The same, and it notes SIGTERM.
NOTES_SIGTERM = DAEMON.replace("signal.SIG_IGN", "lambda *_: open(sys.argv[1] + '.term', 'w').close()")


class PipeWithArguments(LocalPipe):
    """An agent that its transport gave arguments."""

    def __init__(self, *arguments: str) -> None:
        ProcessPipe.__init__(self, [sys.executable, "-c", BOOTSTRAP, *arguments])


class Host:
    """An agent on this machine, prepared for a job in a folder of the test."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.events = Inbox()
        self.pipe = PipeWithArguments(*arguments)
        self.channel = Channel("here", self.pipe, self.events)
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:
        folder = str(self.folder)
        self.channel.ask(
            PREPARE,
            host="here",
            folder=folder,
            cwd=folder,
            path=["/bin"],
            env={},
            grace=60.0,
            code=[],
            library=[],
            files=[],
        )

    def start_daemon(self, program: str = DAEMON) -> int:
        note = self.folder / "pid"
        self.channel.ask(START, argv=["python3", "-c", program, str(note)])
        assert self.next_event(CommandEnd).code == 0
        return int(wait_until(lambda: note.exists() and note.read_text(), "the daemon's number"))

    def next_event(self, kind: type[Kind]) -> Kind:
        while True:
            report = self.events.get(timeout=60).report
            if isinstance(report, kind):
                return report


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path / "jobs" / "job")
    yield one
    one.channel.close()


def test_even_a_daemon_that_ignores_sigterm_is_ended_and_no_other_process(host: Host) -> None:
    other = LocalPipe(None)
    pid = host.start_daemon()
    assert is_alive(pid)
    assert end(host.channel).left == ()
    assert (is_alive(pid), is_alive(other.pid)) == (False, True)
    other.close()


# Its first thread ends, as every thread does that is killed, and another one lives.
FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
SYS_exit = {'x86_64': 60, 'aarch64': 93}[__import__('platform').machine()]
ctypes.CDLL(None).syscall(SYS_exit, 0)
"""


def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    """Until then it keeps its ports and the memory of its GPU, though its state is that of a zombie."""

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS]) as process:
        try:
            wait_until(lambda: state() == "Z", "the end of the first thread")
            wait_until(
                lambda: processes.process_table()[process.pid].state == "S", "the other thread to sleep"
            )
            assert Ending(lambda: trees([process.pid]), Ranks(), 60.0).finish() == []
            assert state() == "Z"  # it is not waited for, but nothing of it lives
            assert process.pid not in processes.process_table()
        finally:
            process.kill()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.timed
def test_a_closed_lifeline_ends_everything(host: Host) -> None:
    pid = host.start_daemon()
    host.channel.close()
    wait_until_gone(pid, 5.0)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])  # SIGTERM: see the second signal below
@pytest.mark.timed
def test_a_signal_for_the_keeper_ends_everything(host: Host, number: signal.Signals) -> None:
    pid = host.start_daemon()
    os.kill(host.pipe.pid, number)
    wait_until_gone(pid, 5.0)


SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(7)))
print("ready", flush=True)
time.sleep(600)
"""


def test_sigterm_to_an_agent_of_a_scheduler_is_for_its_ranks(tmp_path: Path) -> None:
    """At the time limit a scheduler sends it first, and SIGKILL later."""
    host = Host(tmp_path / "jobs" / "job", TERM_TO_RANKS)
    position = {"RANK": 0, "SIZE": 1, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
    words = [f"OMPI_COMM_WORLD_{name}={value}" for name, value in position.items()]
    rank = ("/usr/bin/env", *words, sys.executable, "-IS", attempt.__file__.replace("supervisor", "rank"))
    with contextlib.closing(host.channel):
        host.channel.ask(START, argv=[*rank, "-c", SAVES])
        assert host.next_event(RankOutput).text == "ready\n"
        os.kill(host.pipe.pid, signal.SIGTERM)
        ended, over = None, None
        while not (ended and over):  # two threads of the agent report them, in any order
            report = host.events.get(timeout=60).report
            ended = report if isinstance(report, RankEnded) else ended
            over = report if isinstance(report, CommandEnd) else over
        assert (ended.code, ended.terminated, over.code) == (7, True, 7)
        assert host.channel.ask(FACTS).cores
        os.kill(host.pipe.pid, signal.SIGTERM)  # no rank is left
        assert host.pipe.last_words()


@pytest.mark.parametrize("first", [signal.SIGTERM, None], ids=["a signal", "a closed lifeline"])
def test_a_second_signal_does_not_break_off_the_end(host: Host, first: signal.Signals | None) -> None:
    pid = host.start_daemon(NOTES_SIGTERM)
    if first:
        os.kill(host.pipe.pid, first)
    else:
        host.pipe._process.stdin.close()  # type: ignore[union-attr]  # stdin=PIPE
    wait_until((host.folder / "pid.term").exists, "the first signal for the daemon", pause=0.01)
    os.kill(host.pipe.pid, signal.SIGTERM)
    wait_until_gone(pid)


def test_a_command_that_does_not_exist_is_an_error_with_its_name(host: Host) -> None:
    with pytest.raises(MusterError, match="cannot start the launcher: there is no no-such-program"):
        host.channel.ask(START, argv=["no-such-program"])


def test_ends_are_timed_by_a_clock_that_nobody_sets_and_the_driver_has_them_on_its_own(host: Host) -> None:
    host.channel.set_clock()
    before = steady()
    host.channel.ask(START, argv=["true"])
    end = host.next_event(CommandEnd).time
    assert before <= end <= steady()
    assert abs(end + host.channel.clock_offset - now()) < 30  # not the hours that a clock may be set by


def test_what_a_command_prints_comes_with_its_status(host: Host) -> None:
    assert (host.folder.stat().st_mode & 0o777) == 0o700, "the folder of a job is closed to other users"
    host.channel.ask(START, argv=["sh", "-c", "echo out; echo err >&2; exit 7"])
    reports = [host.events.get(timeout=60).report for _ in range(3)]  # the end may come before the last line
    assert {report.text for report in reports if isinstance(report, LauncherLine)} == {"out\n", "err\n"}
    assert [report.code for report in reports if isinstance(report, CommandEnd)] == [7]


def test_no_environment_of_launchers_leaks_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "RANK", "SLURM_JOB_ID", "SSH_CONNECTION", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "leaked")
    host = Host(tmp_path / "jobs" / "job")
    host.channel.ask(START, argv=["sh", "-c", "env | grep -c =leaked || true"])
    assert host.next_event(LauncherLine).text == "0\n"
    host.channel.close()


def test_the_temporary_folder_of_a_job_goes_with_it(host: Host) -> None:
    host.channel.ask(START, argv=["sh", "-c", 'touch "$TMPDIR/debris"; echo "$TMPDIR"'])
    folder = Path(host.next_event(LauncherLine).text.strip())
    assert (folder / "debris").exists()
    host.channel.close()
    assert not folder.exists()


def test_the_next_agent_takes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv("TMPDIR", place)
        killed = Host(tmp_path / "jobs" / "first")
        (left,) = Path(place).iterdir()
        os.kill(killed.pipe.pid, signal.SIGKILL)
        killed.channel.close()
        assert left.exists()
        second = Host(tmp_path / "jobs" / "second")
        wait_until(lambda: not left.exists(), f"the end of {left}")
        assert len([*Path(place).iterdir()]) == 1
        second.channel.close()


def test_who_may_ask_this_host_can_have_the_driver_told_to_stop(host: Host) -> None:
    run = host.folder / "run"
    run.mkdir()
    driver = {"host": "laptop", "boot": "", "pid": 1}
    record = {"job": "20261121-120000-abcd", "launcher": "mpirun", "driver_folder": "/", "ranks": 1}
    record |= {"attempt": 0, "detached": False, "started": 1.0, "driver": driver, "hosts": ["other", "here"]}
    jobs = JobFolders(host.folder.parent)
    for text in ('{"driver": {}}', "7", json.dumps(record)):  # no record, and that of another head's agent
        (run / "job.json").write_text(text)
        assert jobs.do_end_driver({"job": "job", "by": "somebody"}, b"")["told"] is False
    with (run / "lock.driver").open("w") as lock:  # a driver lives, but its start is not in the record
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert jobs.do_end_driver({"job": "job", "by": "somebody"}, b"")["told"] is False
    (run / "job.json").write_text(json.dumps({**record, "hosts": ["here"]}))
    assert jobs.do_end_driver({"job": "job", "by": "somebody"}, b"")["told"] is True
    assert host.next_event(StopAsked).by == "somebody"
    host.channel.close()
    assert jobs.do_end_driver({"job": "job", "by": "somebody"}, b"")["told"] is False


def test_an_agent_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such interpreter' >&2\nexit 9\n")
    broken.chmod(0o700)
    channel = Channel("here", LocalPipe(str(broken)), Inbox())
    with pytest.raises(MusterError, match="ended with status 9: no such interpreter"):
        channel.ask(FACTS)


def test_an_agent_without_a_home_gives_its_commands_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI does not start without it."""
    monkeypatch.delenv("HOME")
    with Cluster(hostfile.parse("node1"), lambda host: LocalPipe(None), facts=False) as hosts:
        ran = fanout.run_on_hosts(hosts, ["printenv", "HOME"], None)
    assert ran["node1"].output == f"{pwd.getpwuid(os.getuid()).pw_dir}\n"


def test_an_agent_that_is_killed_is_not_called_a_broken_connection() -> None:
    pipe = LocalPipe(None)
    channel = Channel("here", pipe, Inbox())
    channel.ask(FACTS)
    os.kill(pipe.pid, signal.SIGKILL)
    with pytest.raises(LostError, match=r"here: its agent was killed there \(SIGKILL\); .* lack of memory"):
        channel.ask(FACTS)


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, **limits: object) -> str:
    """What a job's start says where a limit is another."""
    for name, value in limits.items():
        monkeypatch.setattr(limits_of_hosts, name, value)
    work = job_in(folder)
    with pytest.raises(ValueError, match="; ") as error:  # what to do comes after it
        work.do_prepare({"folder": str(folder / "jobs" / "job"), "host": "here"}, b"")
    return str(error.value)


def test_a_host_on_which_no_job_could_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "starts no programs (noexec)" in refused(tmp_path, monkeypatch, is_noexec=lambda path: True)
    few = {"is_noexec": lambda path: False, "open_files": lambda: 64}
    assert "only 64 open files are allowed" in refused(tmp_path, monkeypatch, **few)
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 85)
    assert "TMPDIR is too long for the path of a Unix socket: 86 bytes" in refused(tmp_path, monkeypatch)


def test_the_longest_temporary_folder_that_is_allowed_has_room_for_the_socket(tmp_path: Path) -> None:
    longest = tmp_path / ("x" * (LONGEST_TMPDIR - len(str(tmp_path)) - 1))
    longest.mkdir()
    folder = tempfile.mkdtemp(prefix="muster-", dir=longest)
    LocalSocket(folder, {}, Ranks(), lambda frame: None, None)
    assert Path(folder, "agent").is_socket()


def test_a_umask_that_closes_folders_to_their_owner_stops_no_job(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        one = Host(tmp_path / "jobs" / "job")
    finally:
        os.umask(before)
    one.channel.ask(START, argv=["sh", "-c", "umask"])
    assert one.next_event(LauncherLine).text == "0077\n"
    one.channel.close()


def test_a_command_that_cannot_be_ended_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "end_descendants", lambda: [41, 42])  # stuck in the kernel
    told: list[dict[str, object]] = []
    run = commands._RunningCommand(lambda frame, output: told.append(frame), 0.01)
    pump = threading.Thread(target=lambda: None)
    pump.start()
    over = threading.Thread(target=run._finish, args=(pump,), daemon=True)
    over.start()
    over.join(PATIENCE)
    left = told[0].pop("left")
    assert told == [{"event": "ran", "code": 0, "cut": 0, "timed_out": True}]
    assert [process["pid"] for process in left] == [41, 42]  # type: ignore[attr-defined]


def test_a_driver_that_speaks_while_the_agent_works_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    ended: list[int] = []
    heartbeat = attempt.Heartbeat()
    heartbeat.heard = time.monotonic()

    def pause(over: threading.Event, seconds: float) -> bool:
        heartbeat.heard = time.monotonic() - 100.0
        if rounds:
            rounds.pop()
            os.write(writer, b"an unread ping")
        return False

    rounds = [1, 2, 3]
    monkeypatch.setattr(attempt, "STDIN", reader)
    monkeypatch.setattr("threading.Event.wait", pause)
    monkeypatch.setattr("os.kill", lambda pid, number: ended.append(len(rounds)))
    heartbeat.end_after_silence()
    assert ended == [0], "only when nothing more comes"
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_a_driver_may_be_silent_once_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.kill", lambda pid, number: pytest.fail("the agent was ended"))
    heartbeat = attempt.Heartbeat()
    heartbeat.heard = time.monotonic()
    heartbeat.end()
    heartbeat.end_after_silence()
    heartbeat.hear()
    assert not [thread for thread in threading.enumerate() if "end_after_silence" in thread.name]


def test_an_agent_serves_one_attempt_after_the_other(host: Host) -> None:
    """The second has its own folder for temporary files, and reports nothing of the first."""
    folders = []
    for number in (1, 2):
        host.channel.ask(START, argv=["sh", "-c", f"echo $TMPDIR; exit {number}"])
        said = [host.events.get(timeout=60).report for _ in range(2)]  # by two threads
        folders += [Path(line.text.strip()) for line in said if isinstance(line, LauncherLine)]
        assert [end.code for end in said if isinstance(end, CommandEnd)] == [number]
        assert end(host.channel).left == ()
        host.prepare()
    assert folders[0] != folders[1]
    wait_until(lambda: not folders[0].exists(), "the end of the first folder")


def test_an_attempt_that_is_not_over_has_no_successor(host: Host) -> None:
    pid = host.start_daemon()
    with pytest.raises(MusterError, match="an earlier attempt is not over here"):
        host.prepare()
    assert is_alive(pid)


def test_what_an_attempt_reports_late_is_not_about_the_next() -> None:
    sent: list[str] = []
    send = attempt.Reports(lambda frame: sent.append(frame["event"]))
    send({"event": "rank-start"})
    send.end()
    send({"event": "rank-end"})
    send({"event": "stop-asked", "by": "eve"})
    assert sent == ["rank-start", "stop-asked"]


def test_ends_of_processes_are_reported_before_the_next_attempt() -> None:
    """Without `reap_all`, the thread may report them at any time."""
    with subprocess.Popen([sys.executable, "-c", REAPS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ended = json.loads(process.stdout.read())
    assert ended == [["child", 3]]


REAPS = """
import json, os, threading
from muster.deploy.core.agent.processes import Reaper
ended = []
threading.Thread.start = lambda self: None  # it is late
reaper = Reaper(lambda name, code: ended.append((name, code)))
child = reaper.start(["sh", "-c", "exit 3"], lambda code: ended.append(("child", code)))
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
reaper.reap_all()
print(json.dumps(ended))
"""


def test_a_command_of_a_handler_keeps_its_exit_status_while_a_job_runs() -> None:
    """`docker image inspect`, `nvidia-smi`: a failed one must not look like a success."""
    done = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[3] * 50, "ended"]


RUNS = """
import json, os, queue, subprocess
from muster.deploy.core.agent.processes import Reaper
ended = queue.SimpleQueue()
reaper = Reaper(lambda name, code: None)
child = reaper.start(["cat"], lambda code: ended.put("ended"), stdin=subprocess.PIPE, start_new_session=True)
statuses = [subprocess.run(["sh", "-c", "exit 3"]).returncode for _ in range(50)]
left = subprocess.Popen(["true"])  # nobody waits for it
os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
child.stdin.close()
print(json.dumps([statuses, ended.get(timeout=60.0)]))
"""
