"""The background work of a job, besides the attempt that runs, so that it can heal.

It holds spare hosts, seeks hosts that were lost, lets the job grow when they answer, and keeps the imports of
the ranks ready.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from ..connect.channel import Channel
from ..connect.kept import KeptHosts
from ..connect.pipe import OpenPipe
from ..connect.requests.launch import HANDLED, SIGNAL, Handled
from ..connect.reserve import Reserve
from ..errors import MusterError, UsageError
from ..hosts.hostfile import Host
from ..launch.job_events import OnEvent, ignore
from ..launch.result import LaunchResult
from ..plan.launch_plan import LaunchPlan
from ..plan.launcher import place_ranks
from ..plan.spec import LaunchSpec
from . import restart_policy as restart
from .preload import Preloads
from .repeated import PREEMPTED
from .restart_policy import Policy

NAME = "SIGUSR1"
ASK_SECONDS = 5.0
"""Between two questions whether the programs handle the signal: they may not have begun yet."""


class Growth:
    """Sends SIGUSR1 to the ranks of an attempt, once, when all of their programs handle it."""

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels
        self._answers: dict[str, Future[Handled]] = {}
        self._asked = 0.0
        self.sent = False

    def look(self) -> bool:
        """Ask the hosts, or read their answers; returns whether the signal was sent now."""
        if self.sent:
            return False
        if not self._answers:
            if time.monotonic() >= self._asked + ASK_SECONDS:
                self._asked = time.monotonic()
                self._answers = {
                    host: channel.post(HANDLED, name=NAME) for host, channel in self._channels.items()
                }
            return False
        if not all(answer.done() for answer in self._answers.values()):
            return False
        self.sent = all(map(_is_handled, self._answers.values()))
        self._answers = {}
        if self.sent:
            for channel in self._channels.values():
                channel.post(SIGNAL, name=NAME)
        return self.sent


def _is_handled(answer: Future[Handled]) -> bool:
    try:
        return answer.result(0.0).handled
    except MusterError:
        return False


class Background:
    """Does its work in turns of the driver's loop. `say` gets lines for the user."""

    def __init__(self, open_pipe: OpenPipe, say: Callable[[str], None]) -> None:
        self._open_pipe, self._say = open_pipe, say
        self.reserve = Reserve()
        """The connected hosts without ranks."""
        self.answering: frozenset[str] = frozenset()
        """Those that were connected at the end of the last attempt."""
        self._hosts: tuple[Host, ...] = ()

    def begin(
        self,
        spec: LaunchSpec,
        plan: LaunchPlan,
        channels: Mapping[str, Channel],
        hosts: Sequence[Host],
        policy: Policy,
        *,
        on_event: OnEvent = ignore,
    ) -> None:
        """An attempt begins. `hosts`: those that it may use."""
        self._preloads = Preloads(plan.spec, channels, on_event)
        self._spec, self._plan, self._policy = spec, plan, policy
        self._hosts, self._growth = tuple(hosts), Growth(channels)
        if not spec.allocation:  # Slurm has taken a lost node out of it
            for name in policy.away - {host.name for host in hosts}:
                self._seek(name)

    def turn(self) -> None:
        """Look after the hosts without ranks; let the job grow, if it can."""
        self._preloads.turn()
        for name, why in self.reserve.lost().items():
            self._say(f"{name}, which has no rank: {why}")
            self._seek(name)
        for name in self.reserve.arrived():
            self._say(f"{name} answers again; the next attempt can use it")
        if self._spec.grow and not self._growth.sent and self._could_grow() and self._growth.look():
            self._say("SIGUSR1 was sent to every rank: after it has saved, the job continues with more")

    def noted(self, result: LaunchResult) -> LaunchResult:
        """The result of the attempt; whether its ranks have saved so that more of them can start."""
        saved = result.failure and result.failure.exit_status == PREEMPTED
        return dataclasses.replace(result, grows=bool(self._growth.sent and saved))

    def hand_to(self, kept: KeptHosts) -> None:
        """The attempt is over, and another one may take over the hosts without ranks."""
        self.answering = frozenset(self.reserve.channels)
        self.reserve.hand_to(kept)

    def _could_grow(self) -> bool:
        """Whether more ranks could run with the hosts that answer again."""
        more, _ = restart.with_returned(self._hosts, self.reserve.channels, self._policy)
        try:
            ranks = place_ranks(more, self._spec.for_attempt(more, 1)).size
        except UsageError:  # the launcher cannot start them so
            return False
        return len(more) > len(self._hosts) and ranks > len(self._plan.ranks)

    def _seek(self, name: str) -> None:
        self.reserve.seek(self._host(name), self._open_pipe)

    def _host(self, name: str) -> Host:
        return next(host for host in self._spec.hosts if host.name == name)
