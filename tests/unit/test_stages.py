"""The stages of a launch as lines of progress."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.deploy.core import waits
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.connect.requests.attempt import RankProcess, Stopping
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_sample import HostSample, RankSample
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job import stages
from muster.deploy.core.job.stages import DeliveryStage, EndStage
from muster.deploy.core.job.state import LaunchState
from muster.deploy.core.text import progress as progress_module
from muster.deploy.core.text.progress import Progress
from muster.deploy.core.waits import with_hosts
from muster.deploy.features.samples import starting
from muster.deploy.features.samples.starting import StartStage
from tests.unit.plans import make_plan
from tests.waiting import wait_until


@pytest.fixture
def turn_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time of the stages."""
    clock = {"now": 0.0}
    for module in (stages, starting, waits):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    return lambda now: clock.update(now=now)


def test_a_slow_host_is_named_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(progress_module.VARIABLE)
    monkeypatch.setattr(progress_module, "PIPE_SECONDS", 0.0)
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


def test_ranks_are_counted_until_they_have_started_and_one_has_printed(
    turn_clock: Callable[[float], None],
) -> None:
    state, samples = LaunchState(make_plan("node[1-2] slots=2")), dict[str, HostSample]()
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


def test_the_end_names_ranks_that_save_and_then_what_they_left_behind(
    turn_clock: Callable[[float], None],
) -> None:
    state = LaunchState(make_plan("node[1-2] slots=2"))
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
