"""Progress: one live line on a terminal, now and then a line elsewhere, nothing for a quick command."""

from __future__ import annotations

import io
import itertools
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from muster.deploy.core import waits
from muster.deploy.core.connect.bootstrap import agent_source
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.opener import connect_early
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.connect.requests import RankProcess, Stopping
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_sample import HostSample, RankSample
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job import stages
from muster.deploy.core.job.stages import DeliveryStage, EndStage
from muster.deploy.core.job.state import LaunchState
from muster.deploy.core.text import progress as module
from muster.deploy.core.text.columns import cut
from muster.deploy.core.text.live_line import ERASE, LiveLine, live_line
from muster.deploy.core.text.progress import Progress, counted
from muster.deploy.core.text.screen import Screen
from muster.deploy.core.text.terminal import HarmlessStream
from muster.deploy.core.timings import Timings
from muster.deploy.core.waits import with_hosts
from muster.deploy.core.wire import clock
from muster.deploy.features.samples import starting
from muster.deploy.features.samples.starting import StartStage
from tests.unit.attempts import drop
from tests.unit.plans import make_plan
from tests.waiting import wait_until


class Terminal(io.StringIO):
    """A terminal of 80 columns that keeps what is drawn."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown without delay."""
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(module, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(module, "TERMINAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "PIPE_SECONDS", 0.0)


def wait_for(stream: io.StringIO, text: str) -> None:
    wait_until(lambda: text in stream.getvalue(), lambda: f"{text!r} in {stream.getvalue()!r}")


def test_a_terminal_shows_one_line_that_is_removed_at_the_end(terminal: Terminal) -> None:
    hosts: list[str] = []
    with Progress("reading", stream=terminal) as progress:
        wait_for(terminal, "reading")
        progress.stage(lambda: f"connecting: {len(hosts)} of 3 hosts")
        wait_for(terminal, f"reading{ERASE}connecting: 0 of 3 hosts")
        hosts.append("node1")
        wait_for(terminal, f"0 of 3 hosts{ERASE}connecting: 1 of 3 hosts")
        progress.stage("")
        wait_for(terminal, f"1 of 3 hosts{ERASE}")
        progress.stage("ending")
        wait_for(terminal, "ending")
    assert terminal.getvalue().endswith(f"ending{ERASE}")
    assert "\n" not in terminal.getvalue()


def test_a_terminal_line_is_never_wider_than_the_terminal(terminal: Terminal) -> None:
    with Progress(f"reading {'漢' * 60}\x1b[2J", stream=terminal):
        wait_for(terminal, "…")
    shown = terminal.getvalue().removesuffix(ERASE)
    assert shown == f"reading {'漢' * 35}…" and cut("x" * 9, 8) == f"{'x' * 7}…"


def test_the_line_is_removed_before_any_other_output_and_drawn_again_after_it(terminal: Terminal) -> None:
    with Progress("connecting", stream=terminal):
        wait_for(terminal, "connecting")
        HarmlessStream(terminal).write("note: a\n")
        wait_for(terminal, f"connecting{ERASE}note: a\nconnecting")
        Screen(terminal).say("job 1")
        wait_for(terminal, f"connecting{ERASE}job 1\nconnecting")


def test_no_line_is_drawn_over_a_question(terminal: Terminal) -> None:
    line = LiveLine()
    line.remove("sure? ", is_terminal=True)
    line.draw(terminal, "connecting")
    assert terminal.getvalue() == ""


def test_a_count_is_shown_from_its_begin_to_its_end(terminal: Terminal) -> None:
    with Progress("waiting", stream=terminal), Progress("data", unit="hosts", stream=terminal) as count:
        wait_for(terminal, "waiting")
        count.show(1, 2)
        wait_for(terminal, f"{ERASE}data: 1 of 2 hosts")
        count.show(2, 2)
        wait_for(terminal, f"2 hosts{ERASE}waiting")


def test_the_inner_progress_is_shown(terminal: Terminal) -> None:
    with Progress("outer", stream=terminal):
        with Progress("inner", stream=terminal):
            wait_for(terminal, "inner")
        wait_for(terminal, f"inner{ERASE}outer")


def test_a_pipe_gets_plain_lines_after_a_while_without_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIPE_SECONDS", 0.05)
    stream = io.StringIO()
    with Progress("connecting", stream=stream) as progress:
        wait_for(stream, "connecting\n")
        progress.stage("sending")
        wait_for(stream, "sending\n")
    assert {*stream.getvalue().splitlines()} == {"connecting", "sending"}


def test_a_pipe_is_silent_3_s_at_first_and_10_s_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now, lines, times = io.StringIO(), live_line.quiet_since, 0, [0.0]
    monkeypatch.setattr(module, "PIPE_SECONDS", 2.0)
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress(lambda: "working", stream=stream)
    progress._open.append(progress)
    for turn in range(1, 6000):
        now = live_line.quiet_since + 0.1 if turn == 1 else now + 0.1
        progress.refresh()
        if stream.getvalue().count("\n") > lines:
            lines += 1
            times.append(turn / 10)
    progress.close()
    silences = [(after, after - before) for before, after in itertools.pairwise(times)]
    assert max(silence for after, silence in silences if after < 25) < 3
    assert max(silence for _, silence in silences) < 10.2
    assert lines < 80


def test_a_quick_command_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIPE_SECONDS", 300.0)
    stream = io.StringIO()
    with Progress("connecting", stream=stream):
        live_line.remove("", is_terminal=False)
    assert stream.getvalue() == ""


def test_a_stage_has_its_time_and_a_count_its_speed_once_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress("checking", unit="hosts", stream=io.StringIO())
    progress.show(8, 16)
    assert progress.text() == "checking: 8 of 16 hosts"
    monkeypatch.setattr(module, "ELAPSED_SECONDS", 0.0)
    assert progress.text() == "checking: 8 of 16 hosts, 0 s"
    progress.show(0, 0)
    assert progress.text() == "checking, 0 s"
    assert counted(392_000_000, 784_000_000, 4) == "50 %, 392 of 784 MB, 98 MB/s, 4 s left"


def test_a_user_can_turn_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, module.OFF)
    with Progress("connecting") as progress:
        assert progress not in Progress._open


def test_a_stream_that_is_gone_ends_nothing() -> None:
    stream = io.StringIO()
    with Progress("connecting", stream=stream) as progress:
        stream.close()
        progress._draw("connecting")


# -- the stages of a launch as lines of progress --


@pytest.fixture
def turn_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time of the stages."""
    clock = {"now": 0.0}
    for part in (stages, starting, waits):
        monkeypatch.setattr(part, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    return lambda now: clock.update(now=now)


def test_a_slow_host_is_named_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(module, "PIPE_SECONDS", 0.0)
    monkeypatch.setattr(waits, "ELAPSED_SECONDS", 0.0)
    stream, login = io.StringIO(), threading.Event()

    def open_pipe(host: Host) -> Pipe:
        if host.name == "node3":
            login.wait()
        return LocalPipe(None)

    slow = "connecting, waiting for 1 of 3 hosts: node3 ("

    def let_in_once_it_is_named() -> None:
        wait_until(lambda: slow in stream.getvalue(), stream.getvalue)
        login.set()

    with Progress(with_hosts("connecting"), stream=stream) as progress:
        in_time = threading.Thread(target=let_in_once_it_is_named)
        in_time.start()
        with Cluster(hostfile.parse("node[1-3]"), open_pipe):
            progress.stage("")
        in_time.join()
    assert slow in stream.getvalue()


def test_what_is_sent_is_counted_also_within_a_large_file(turn_clock: Callable[[float], None]) -> None:
    nodes = [cast(Any, SimpleNamespace(host=name, writer=SimpleNamespace(written=500))) for name in "ab"]
    stage = DeliveryStage()
    assert stage() == "sending files"
    sizes = {"train.py": 1_000_000, "big/w.bin": 149_000_000}
    first, second = [stage.send(node, sizes) for node in nodes]
    first.begin(1_000_000, 400_000)
    nodes[0].writer.written += 400_000
    assert stage() == "sending 1 of 300 MB to 2 hosts (largest: big/w.bin)"
    first.begin(149_000_000, 149_001_000)
    nodes[0].writer.written += 74_500_500
    turn_clock(10.0)
    assert stage() == "sending 76 of 300 MB to 2 hosts, 29 s left (largest: big/w.bin)"
    nodes[0].writer.written += 999_999_999
    assert stage().startswith("sending 150 of 300 MB")
    second.begin(150_000_000, 1)
    nodes[1].writer.written += 1
    with waits.waiting(hosts=["a", "b"]) as wait:
        wait.over_for("a")
        assert stage() == "sending files, waiting for 1 of 2 hosts: b"


def test_a_small_tree_is_not_counted() -> None:
    stage = DeliveryStage()
    stage.send(cast(Any, SimpleNamespace(writer=SimpleNamespace(written=0))), {"train.py": 10})
    assert stage() == "sending files"


def test_ranks_are_counted_until_one_has_printed(turn_clock: Callable[[float], None]) -> None:
    state, samples = LaunchState(make_plan("node[1-2] slots=2"), drop), dict[str, HostSample]()
    stage = StartStage(state, samples)
    assert stage() == "starting mpirun"
    turn_clock(4.0)
    assert stage() == "starting mpirun, 4 s"
    state.started |= {0, 1, 2}
    stage.has_printed = True
    assert stage() == "3 of 4 ranks started, 4 s (rank 3 on node2: code delivered)"
    state.started.add(3)
    assert stage() == ""
    stage.has_printed = False
    assert stage() == "4 ranks started"
    turn_clock(16.0)
    assert stage() == "4 ranks started, no output for 12 s"

    def measured(*cores: float | None) -> str:
        for number in (0, 1):
            ranks = tuple(RankSample(rank, cores[rank]) for rank in (2 * number, 2 * number + 1))
            samples[f"node{number + 1}"] = HostSample(at=1.0, host=f"node{number + 1}", ranks=ranks)
        return stage().removeprefix("4 ranks started, no output for 12 s")

    assert measured(1.0, 1.0, 1.0, None) == ""
    assert measured(1.0, 1.0, 1.0, 0.9) == "; all use the CPU"
    assert measured(1.0, 0.0, 0.0, 0.0) == "; only rank 0 uses the CPU"
    assert measured(1.0, 0.0, 0.9, 0.0) == "; only ranks 0,2 use the CPU"
    assert measured(0.0, 0.0, 0.0, 0.01) == "; none uses the CPU"


def test_a_stage_without_slow_hosts_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "ELAPSED_SECONDS", 0.0)
    assert with_hosts("preparing the packages")() == "preparing the packages (0 s)"


def test_the_end_names_ranks_that_save_and_their_rests(turn_clock: Callable[[float], None]) -> None:
    state = LaunchState(make_plan("node[1-2] slots=2"), drop)
    stage = EndStage(state, 2)
    assert stage() == "removing temporary files on 2 hosts"
    turn_clock(4.0)
    stage.note("node1", Stopping(False, (), saving=(1,)))
    assert stage() == "rank 1 still handles SIGTERM, 4 s; Ctrl-C ends the job now"
    stage.note("node2", Stopping(False, (), saving=(2, 3)))
    assert stage() == "ranks 1-3 still handle SIGTERM, 4 s; Ctrl-C ends the job now"
    stage.note("node1", Stopping(False, (), behind=(RankProcess(0, 7, "sh"), RankProcess(None, 8, "cp"))))
    stage.note("node2", Stopping(True, ()))
    left = "every rank is done; waiting for sh of rank 0 on node1 and 1 more, 4 s; Ctrl-C ends it now"
    assert stage() == left


# -- where the time of a start goes, and the way to hosts that is opened before anybody waits for it --


NODES = hostfile.parse("node[1-3]")


def test_a_part_of_every_host_lasts_from_the_first_to_the_last() -> None:
    timings = Timings()
    with timings.part("tree"):
        pass
    for host in ("node2", "node1"):
        timings.note("connection", began=1.0 if host == "node1" else 2.0, host=host)
    tree, connection = timings.parts()
    assert (tree.name, tree.slowest) == ("tree", "")
    assert (connection.began, connection.slowest) == (1.0, "node1")
    assert tree.ended <= connection.ended


def test_a_clock_begins_with_the_process() -> None:
    assert Timings().now() > 0.01, "Python itself takes longer than that"


def test_a_recovery_begins_with_the_failure_and_its_parts_have_the_time_of_day() -> None:
    failed = clock.now() - 30.0
    timings = Timings(since=failed)
    assert 29.9 < timings.now() < 90.0
    timings.note_at("notice of the failure", failed, failed + 0.5)
    (part,) = timings.parts()
    assert part.began == pytest.approx(0.0, abs=0.05)
    assert part.ended == pytest.approx(0.5, abs=0.05)


def pipe() -> Pipe:
    return cast(Pipe, Mock(writer=Mock(written=0)))


def test_the_way_to_every_host_is_begun_before_anybody_asks() -> None:
    begun: list[str] = []

    def open_pipe(host: Host) -> Pipe:
        begun.append(host.name)
        return pipe()

    connect_early(NODES, open_pipe, Timings())
    wait_until(lambda: len(begun) == 3, "three hosts are begun with")
    assert sorted(begun) == ["node1", "node2", "node3"]


def test_a_host_is_opened_once_and_anew_when_it_is_asked_for_again() -> None:
    opened: list[Pipe] = []

    def open_pipe(host: Host) -> Pipe:
        opened.append(pipe())
        return opened[-1]

    take = connect_early(NODES[:1], open_pipe, Timings())
    assert take(NODES[0]) is opened[0]
    opened[0].writer.write.assert_called_once_with(agent_source())  # type: ignore[attr-defined]
    assert take(NODES[0]) is opened[1]
    assert len(opened) == 2


def test_an_error_is_raised_to_whoever_asks_for_the_host() -> None:
    def refuse(host: Host) -> Pipe:
        raise MusterError("refused", host=host.name)

    take = connect_early(NODES, refuse, Timings())
    for node in NODES:
        with pytest.raises(MusterError, match="refused"):
            take(node)


def test_a_host_that_does_not_answer_keeps_nobody_from_another() -> None:
    never = threading.Event()

    def open_pipe(host: Host) -> Pipe:
        if host.name == "node1":
            never.wait()
        return pipe()

    take = connect_early(NODES, open_pipe, Timings())
    assert take(NODES[1]) and take(NODES[2])
    never.set()


def test_threads_take_turns_as_ever_once_every_way_is_open() -> None:
    usual = 0.005  # Python's; a test before this may just now end its threads
    wait_until(lambda: sys.getswitchinterval() == usual, "threads of other tests that have ended")
    go = threading.Event()

    def open_pipe(host: Host) -> Pipe:
        go.wait(60)
        return pipe()

    connect_early(NODES, open_pipe, Timings())
    connect_early(NODES, open_pipe, Timings())
    assert sys.getswitchinterval() < usual
    go.set()
    wait_until(lambda: sys.getswitchinterval() == usual, "turns of the usual length")
