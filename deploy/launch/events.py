"""What hosts report of a running launch, and what follows from it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..common.frames import Frame
from ..connect.cluster import Cluster
from ..console.terminal import harmless
from ..console.text import describe_code, status_of
from ..decode import from_json
from ..plan.openmpi import starts_daemon
from .result import Failure, RankEnd, describe_out_of_memory, stopped
from .state import State
from .watchdogs import Stall

# After the launcher's end, reports of ranks on other hosts may still be on their way.
LATE_SECONDS = 2.0
# Open MPI 5.0 may hang at its exit when all ranks have ended well (ompi#12064); the job is done by then.
LAUNCHER_EXIT_SECONDS = 10.0
STREAMS = ("out", "err")


class Watcher(Protocol):
    """Is shown what happens, as it happens."""

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """What a rank printed: whole lines, or at the end of its output what is left."""
        ...

    def launcher(self, host: str, text: str) -> None:
        """A line of mpirun or torchrun itself."""
        ...


class Reports:
    """Takes in the events of every host, one at a time."""

    def __init__(self, state: State, cluster: Cluster, watchers: Sequence[Watcher], stall: Stall) -> None:
        self.state, self.cluster, self.watchers, self.stall = state, cluster, watchers, stall
        state.catch_up = self._catch_up
        self._handlers: dict[str, Callable[[str, Frame], None]] = {
            "rank-start": self._rank_start,
            "output": self._output,
            "rank-end": self._rank_end,
            "pulse": stall.pulse,
            "launcher": self._launcher,
            "command-end": self._command_end,
            "shell": self._shell,
            "shell-end": self._shell_end,
            "daemon-end": self._daemon_end,
            "lost": self._host_lost,
            "stop-asked": self._stop_asked,
        }

    def take(self, host: str, frame: Frame) -> None:
        """One event; what no keeper sends is a failure of its host."""
        try:
            self._handlers[frame["event"]](host, frame)
        except (KeyError, TypeError, ValueError, AttributeError):  # a keeper is ours, but its host may not be
            reason = "sent a report that no keeper sends"
            self.state.fail(Failure("host", reason, 3, host=host, at=time.time()))

    def _catch_up(self) -> None:
        for _ in range(self.cluster.events.qsize()):  # no more than that: ranks may print without an end
            self.take(*self.cluster.events.get())

    # -- ranks --

    def _rank_start(self, host: str, frame: Frame) -> None:
        rank, places = frame["rank"], self.state.places
        planned = places.get(rank)
        real = (host, frame["local_rank"], frame["world_size"])
        if planned is None or real != (planned.host, planned.local_rank, len(places)):
            expected = f"local rank {planned.local_rank} on {planned.host}" if planned else "not planned"
            reason = (
                f"rank {rank} started as local rank {real[1]} on {host} in a world of {real[2]}; "
                f"the plan says {expected} in a world of {len(places)}"
            )
            self.state.fail(Failure("placement", reason, 1, host=host, rank=rank, at=time.time()))
        self.state.started.add(rank)

    def _output(self, host: str, frame: Frame) -> None:
        rank, stream, text = frame["rank"], frame["stream"], frame["text"]
        if rank not in self.state.places or stream not in STREAMS:
            raise ValueError("output is of a rank's out or err")  # both become part of a path here
        self.stall.printed()
        if rank == 0 and stream == "out" and (said := text.rstrip().rpartition("\n")[2]):
            self.state.last_line = said.rpartition("\r")[2]
        for watcher in self.watchers:
            watcher.output(rank, host, stream, text)

    def _rank_end(self, host: str, frame: Frame) -> None:
        rank, ends = frame["rank"], self.state.ends
        if rank not in self.state.places or rank in ends:
            return
        at = self._when(host, frame)
        ends[rank] = RankEnd(self.state.places[rank], frame["code"], at, tuple(frame["tail"]), _why(frame))
        if frame["code"] != 0:
            self.state.fail(ends[rank].as_failure())
        elif not self.state.missing:
            self.state.deadlines.after(LAUNCHER_EXIT_SECONDS, self._launcher_stays)
        self._check_done()

    # -- launchers --

    def _launcher(self, host: str, frame: Frame) -> None:
        self.state.launcher_said(frame["text"])
        for watcher in self.watchers:
            watcher.launcher(host, frame["text"])

    def _command_end(self, host: str, frame: Frame) -> None:
        codes = self.state.launcher_codes
        codes[host] = frame["code"]
        if frame["code"] < 0:  # killed: what ranks do now follows from it
            why = f": {why}" if (why := _why(frame)) else ""
            self._launcher_failed(host, frame["code"], why, self._when(host, frame))
        elif frame["code"] != 0 or codes.keys() == self.state.commands:
            self.state.deadlines.after(LATE_SECONDS, self._ranks_are_missing)
        self._check_done()

    def _shell(self, host: str, frame: Frame) -> None:
        """mpirun on the head wants its daemon started on a host of this job: once, and nothing else."""
        plan, daemons = self.state.plan, self.state.daemons
        if plan.spec.launcher != "mpirun" or host != plan.hosts[0].host.name:
            raise ValueError("only mpirun on the head starts anything elsewhere")
        name, number, command = frame["host"], int(frame["number"]), frame["command"]
        target, reason = self.cluster.channels.get(name), ""
        if target is None:
            reason = f"mpirun asked for {name}, which is not a host of this job"
        elif name in daemons:
            reason = f"mpirun asked for a second daemon on {name}"
        elif not starts_daemon(command):
            reason = f"what mpirun asked for on {name} does more than start its daemon: {command[:200]}"
        if target is None or reason:
            self.state.fail(Failure("launcher", reason, 1, host=host, at=time.time()))
            return
        daemons[name] = number
        self.state.phases[name] = "mpirun's daemon asked for"
        target.post("shell", number=number, command=command)

    def _shell_end(self, host: str, frame: Frame) -> None:
        number = self.state.daemons[host]
        if frame["code"] != 0:
            self._daemon_end(host, {"name": "mpirun's daemon", **frame})
        self.state.phases[host] = "mpirun's daemon up"  # it leaves the shell that started it
        head = self.cluster.channels[self.state.plan.hosts[0].host.name]
        head.post("shell_end", number=number, code=frame["code"])

    def _daemon_end(self, host: str, frame: Frame) -> None:
        """Open MPI's daemon on a host was killed: what its ranks do now follows from it."""
        at = self._when(host, frame)
        self._blame_launcher(host, f"{frame['name']} ended with", frame["code"], "", at)

    def _host_lost(self, host: str, frame: Frame) -> None:
        self.state.fail(Failure("host", "the line to its keeper is gone", 3, host=host, at=time.time()))

    def _stop_asked(self, host: str, frame: Frame) -> None:
        """`fab stop` on a machine that is not the driver's: it ends as by a SIGTERM there."""
        if not self.state.over:
            by = harmless(from_json(str, frame["by"]))
            self.state.failures = [stopped(by, 128 + signal.SIGTERM, time.time())]
            self.state.finish()

    # -- what follows --

    def _check_done(self) -> None:
        """All well when every rank has ended with 0 and every launcher command has ended."""
        state = self.state
        if state.failures or state.missing or state.launcher_codes.keys() != state.commands:
            return
        for host, code in state.launcher_codes.items():
            if code != 0:
                self._launcher_failed(host, code, " though every rank ended with status 0")
        if not state.failures:
            state.finish()

    def _ranks_are_missing(self) -> None:
        state = self.state
        state.catch_up()
        if not state.missing or state.failures:
            return
        host, code = max(state.launcher_codes.items(), key=lambda item: item[1] != 0)
        unstarted = [rank for rank in state.missing if rank not in state.started]
        said = (
            f"a start of {state.name(unstarted)}" if unstarted else f"an end of {state.name(state.missing)}"
        )
        self._launcher_failed(host, code, f" without {said}")

    def _launcher_failed(self, host: str, code: int, circumstance: str, at: float | None = None) -> None:
        what = f"{self.state.plan.spec.launcher} ended with"
        self._blame_launcher(host, what, code, circumstance, time.time() if at is None else at)

    def _blame_launcher(self, host: str, what: str, code: int, circumstance: str, at: float) -> None:
        reason = f"{what} {describe_code(code)}{circumstance}"
        tail = tuple(self.state.launcher_tail)
        failure = Failure("launcher", reason, status_of(code) or 1, host=host, at=at, tail=tail)
        self.state.fail(failure)

    def _when(self, host: str, frame: Frame) -> float:
        """When its keeper saw what it reports, on the driver's clock."""
        at: float = frame["time"] + self.cluster.channels[host].clock_offset
        return at

    def _launcher_stays(self) -> None:
        self.state.catch_up()
        if self.state.over or self.state.failures:
            return
        launcher = self.state.plan.spec.launcher
        self.state.notes.append(
            f"{launcher} was still there {LAUNCHER_EXIT_SECONDS:.0f} s after all ranks had ended"
        )
        self.state.finish()


def _why(end: Frame) -> str:
    """What a host knows of an end beyond its code."""
    killed = end.get("out_of_memory")
    return describe_out_of_memory(killed["limit"]) if killed else ""
