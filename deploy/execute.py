"""Does what a plan says, and watches it to its end.

mpirun's exit status is not believed (5.0 may exit 0 when a host dies): a launch has succeeded when every
planned rank has started where it was planned, and has reported an end with status 0. The first thing that
goes wrong ends the job on every host, whether or not the others would ever notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from queue import Empty
from typing import Protocol

from deploy.channel import LostError, wait
from deploy.cluster import Cluster
from deploy.deliver import deliver
from deploy.errors import MusterError
from deploy.node.wire import Frame
from deploy.plan import LaunchPlan
from deploy.result import Failure, LaunchResult, RankEnd, describe_code, status_of

# Failures that come this close together are compared by their own time: victims often report first.
SETTLE_SECONDS = 0.3
# After the launcher's end, reports of ranks on other hosts may still be on their way.
LATE_SECONDS = 2.0
# Open MPI 5.0 may hang at its exit when all ranks have ended well (ompi#12064); the job is done by then.
LAUNCHER_EXIT_SECONDS = 10.0
STOP_SECONDS = 15.0
HEARTBEAT_SECONDS = 2.0
# A host that says nothing for so long is frozen or cut off; its own patience is a little longer, so that the
# driver's verdict comes first (deploy/node/agent.py).
SILENCE_SECONDS = 10.0
LAUNCHER_TAIL = 40
STREAMS = ("out", "err")


class Watcher(Protocol):
    """Is shown what happens, as it happens."""

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """What a rank printed: whole lines, or at the end of its output what is left."""
        ...

    def launcher(self, host: str, text: str) -> None:
        """A line of mpirun or torchrun itself."""
        ...


def execute(
    plan: LaunchPlan, cluster: Cluster, watchers: Sequence[Watcher], *, start_timeout: float
) -> LaunchResult:
    """Carry out the plan; returns how it ended, also when it was interrupted."""
    deliver(plan, cluster)
    return _Run(plan, cluster, watchers, start_timeout).run()


class _Run:
    """One launch from its start to its end: what the hosts report, and what follows from it."""

    def __init__(
        self, plan: LaunchPlan, cluster: Cluster, watchers: Sequence[Watcher], start_timeout: float
    ) -> None:
        self.plan, self.cluster, self.watchers = plan, cluster, watchers
        self.places = {place.rank: place for place in plan.ranks}
        self.commands = {host.host.name for host in plan.hosts if host.command}
        self.started: set[int] = set()
        self.ends: dict[int, RankEnd] = {}
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.last_line = ""
        self.launcher_tail: list[str] = []
        self.launcher_codes: dict[str, int] = {}
        self.began = time.time()
        self.start_timeout = start_timeout
        self._deadlines: dict[Callable[[], None], float] = {}
        self._over = False
        self._silent: set[str] = set()
        self._handlers: dict[str, Callable[[str, Frame], None]] = {
            "rank-start": self._rank_start,
            "output": self._output,
            "rank-end": self._rank_end,
            "launcher": self._launcher,
            "command-end": self._command_end,
            "shell": self._shell,
            "shell-end": self._shell_end,
            "daemon-end": self._daemon_end,
            "lost": self._host_lost,
        }

    def run(self) -> LaunchResult:
        try:
            self._after(self.start_timeout, self._start_timed_out)
            self._heartbeat()
            for host in self.plan.hosts:
                if host.command:
                    self.cluster.channels[host.host.name].ask("start", argv=host.command)
            while not self._over:
                self._step()
        except KeyboardInterrupt as interrupt:
            number = interrupt.args[0] if interrupt.args else 2
            self.failures = [Failure("interrupted", describe_code(-number), 128 + number, at=time.time())]
        except MusterError as error:
            self.failures.append(Failure("launcher", str(error), error.exit_status or 1, at=time.time()))
        left = self._stop()
        failure = min(self.failures, key=lambda one: one.at, default=None)
        return LaunchResult(
            plan=self.plan,
            started=self.began,
            ended=time.time(),
            failure=failure,
            ends=self.ends,
            left=left,
            last_line=self.last_line,
            notes=tuple(self.notes),
        )

    # -- time --

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do this after so many seconds, unless it is due earlier already."""
        self._deadlines.setdefault(action, time.monotonic() + seconds)

    def _step(self) -> None:
        """Handle the next event, or what is due."""
        now = time.monotonic()
        for action in [action for action, due in self._deadlines.items() if due <= now]:
            del self._deadlines[action]
            action()
        if not self._over:
            self._take(max(0.0, min(self._deadlines.values(), default=now + 1.0) - now))

    def _take(self, seconds: float) -> bool:
        try:
            host, frame = self.cluster.events.get(timeout=min(seconds, 3600.0) or 0.001)
        except Empty:
            return False
        try:
            self._handlers[frame["event"]](host, frame)
        except (KeyError, TypeError, ValueError, AttributeError):  # a keeper is ours, but its host may not be
            self._fail(Failure("host", "sent a report that no keeper sends", 3, host=host, at=time.time()))
        return True

    def _heartbeat(self) -> None:
        """Let every keeper know that the driver is there, and see that each answers."""
        now = time.monotonic()
        for name, channel in self.cluster.channels.items():
            if now - channel.heard > SILENCE_SECONDS and name not in self._silent:
                self._silent.add(name)
                reason = f"silent for {SILENCE_SECONDS:.0f} s: frozen, or cut off from the network"
                self._fail(Failure("host", reason, 3, host=name, at=time.time()))
            channel.post("ping")
        self._after(HEARTBEAT_SECONDS, self._heartbeat)

    def _finish(self) -> None:
        self._over = True

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        self._after(SETTLE_SECONDS, self._finish)

    # -- what hosts report --

    def _rank_start(self, host: str, frame: Frame) -> None:
        rank = frame["rank"]
        planned = self.places.get(rank)
        real = (host, frame["local_rank"], frame["world_size"])
        if planned is None or real != (planned.host, planned.local_rank, len(self.places)):
            expected = f"local rank {planned.local_rank} on {planned.host}" if planned else "not planned"
            reason = (
                f"rank {rank} started as local rank {real[1]} on {host} in a world of {real[2]}; "
                f"the plan says {expected} in a world of {len(self.places)}"
            )
            self._fail(Failure("placement", reason, 1, host=host, rank=rank, at=time.time()))
        self.started.add(rank)
        if len(self.started) == len(self.places):
            self._deadlines.pop(self._start_timed_out, None)

    def _output(self, host: str, frame: Frame) -> None:
        rank, stream, text = frame["rank"], frame["stream"], frame["text"]
        if rank not in self.places or stream not in STREAMS:
            raise ValueError("output is of a rank's out or err")  # both become part of a path here
        if rank == 0 and stream == "out" and (said := text.rstrip().rpartition("\n")[2]):
            self.last_line = said.rpartition("\r")[2]
        for watcher in self.watchers:
            watcher.output(rank, host, stream, text)

    def _rank_end(self, host: str, frame: Frame) -> None:
        rank = frame["rank"]
        if rank not in self.places or rank in self.ends:
            return
        at = frame["time"] + self.cluster.channels[host].clock_offset
        self.ends[rank] = RankEnd(self.places[rank], frame["code"], at, tuple(frame["tail"]))
        if frame["code"] != 0:
            self._fail(self.ends[rank].as_failure())
        elif len(self.ends) == len(self.places):
            self._after(LAUNCHER_EXIT_SECONDS, self._launcher_stays)
        self._check_done()

    def _launcher(self, host: str, frame: Frame) -> None:
        self.launcher_tail = [*self.launcher_tail[1 - LAUNCHER_TAIL :], frame["text"].rstrip("\n")]
        for watcher in self.watchers:
            watcher.launcher(host, frame["text"])

    def _command_end(self, host: str, frame: Frame) -> None:
        self.launcher_codes[host] = frame["code"]
        if frame["code"] < 0:  # killed: what ranks do now follows from it
            self._launcher_failed(host, frame["code"], "")
        elif frame["code"] != 0 or self.launcher_codes.keys() == self.commands:
            self._after(LATE_SECONDS, self._ranks_are_missing)
        self._check_done()

    def _shell(self, host: str, frame: Frame) -> None:
        """mpirun on `host` wants a command run on another: only on a host of this job."""
        target = self.cluster.channels.get(frame["host"])
        if target is None:
            reason = f"mpirun asked for {frame['host']}, which is not a host of this job"
            self._fail(Failure("launcher", reason, 1, host=host, at=time.time()))
            return
        target.post("shell", number=f"{host}/{frame['number']}", command=frame["command"])

    def _shell_end(self, host: str, frame: Frame) -> None:
        if frame["code"] != 0:
            self._daemon_end(host, {"name": "mpirun's daemon", **frame})
        asker, _, number = frame["number"].rpartition("/")
        self.cluster.channels[asker].post("shell_end", number=int(number), code=frame["code"])

    def _daemon_end(self, host: str, frame: Frame) -> None:
        """Open MPI's daemon on a host was killed: what its ranks do now follows from it."""
        reason = f"{frame['name']} ended with {describe_code(frame['code'])}"
        tail = tuple(self.launcher_tail)
        self._fail(
            Failure("launcher", reason, status_of(frame["code"]), host=host, at=time.time(), tail=tail)
        )

    def _host_lost(self, host: str, frame: Frame) -> None:
        self._fail(Failure("host", "the line to its keeper is gone", 3, host=host, at=time.time()))

    # -- what follows --

    def _check_done(self) -> None:
        """All well when every rank has ended with 0 and every launcher command has ended."""
        if self.failures or len(self.ends) < len(self.places) or self.launcher_codes.keys() != self.commands:
            return
        for host, code in self.launcher_codes.items():
            if code != 0:
                self._launcher_failed(host, code, "though every rank ended with status 0")
        if not self.failures:
            self._finish()

    def _ranks_are_missing(self) -> None:
        missing = sorted(self.places.keys() - self.ends.keys())
        if not missing or self.failures:
            return
        host, code = max(self.launcher_codes.items(), key=lambda item: item[1] != 0)
        unstarted = [rank for rank in missing if rank not in self.started]
        said = (
            f"without a start of {self._name(unstarted)}"
            if unstarted
            else f"without an end of {self._name(missing)}"
        )
        self._launcher_failed(host, code, said)

    def _launcher_failed(self, host: str, code: int, circumstance: str) -> None:
        launcher = self.plan.spec.launcher
        reason = f"{launcher} ended with {describe_code(code)} {circumstance}".rstrip()
        self._fail(
            Failure(
                "launcher",
                reason,
                status_of(code) or 1,
                host=host,
                at=time.time(),
                tail=tuple(self.launcher_tail),
            )
        )

    def _launcher_stays(self) -> None:
        launcher = self.plan.spec.launcher
        self.notes.append(
            f"{launcher} was still there {LAUNCHER_EXIT_SECONDS:.0f} s after all ranks had ended"
        )
        self._finish()

    def _start_timed_out(self) -> None:
        missing = sorted(self.places.keys() - self.started)
        reason = f"{self._name(missing)} had not started after {self.start_timeout:.0f} s"
        self._fail(Failure("start", reason, 3, at=time.time(), tail=tuple(self.launcher_tail)))

    def _name(self, ranks: Iterable[int]) -> str:
        """`rank 2 (node2), rank 3 (node2)`."""
        return ", ".join(f"rank {rank} ({self.places[rank].host})" for rank in ranks)

    # -- the end --

    def _stop(self) -> dict[str, int]:
        """End the job on every host; returns the number of processes that are left, where there are any."""
        asked: dict[str, Future[Frame]] = {
            name: channel.post("stop")
            for name, channel in self.cluster.channels.items()
            if name not in self._silent  # that one's keeper ends everything by itself, when it can
        }
        deadline = time.monotonic() + STOP_SECONDS
        while any(not future.done() for future in asked.values()) and time.monotonic() < deadline:
            self._drain(0.05)
        self._drain(0.0)
        return {name: left for name, future in asked.items() if (left := _left(future, name))}

    def _drain(self, seconds: float) -> None:
        """Take in last lines and ends; nothing that comes now is a failure of its own."""
        failures = list(self.failures)
        while self._take(seconds):
            seconds = 0.0
        self.failures = failures


def _left(future: Future[Frame], host: str) -> int:
    try:
        return len(wait(future, host, 0.0)["left"])
    except (LostError, MusterError):
        return 0  # the lifeline is cut there: its keeper ends everything by itself
