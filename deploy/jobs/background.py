"""The background work of a job, besides the attempt that runs, so that it can heal.

It holds spare hosts, seeks hosts that were lost, lets the job grow when they answer, and keeps a standby
driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ..connect.channel import Channel
from ..connect.kept import KeptHosts
from ..connect.pipe import OpenPipe
from ..connect.reserve import Reserve
from ..errors import UsageError
from ..hosts.hostfile import Host
from ..launch.result import LaunchResult
from ..plan.launch_plan import LaunchPlan
from ..plan.launcher import place_ranks
from ..plan.spec import LaunchSpec
from . import fence
from . import restart_policy as restart
from .growth import Growth
from .repeated import PREEMPTED
from .restart_policy import Policy
from .standby import Standby


class Background:
    """Does its work in turns of the driver's loop. `say` gets lines for the user."""

    def __init__(self, open_pipe: OpenPipe, say: Callable[[str], None], standby: Standby | None) -> None:
        self._open_pipe, self._say, self._standby = open_pipe, say, standby
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
    ) -> None:
        """An attempt begins. `hosts`: those that it may use."""
        self._spec, self._plan, self._policy = spec, plan, policy
        self._hosts, self._growth = tuple(hosts), Growth(channels)
        if not spec.allocation:  # Slurm has taken a lost node out of it
            for name in policy.away - {host.name for host in hosts}:
                self._seek(name)

    def record(self, record: Mapping[str, object]) -> None:
        """Let the standby driver have the record of the job too."""
        if self._standby:
            self._standby.record("job.json", record)

    def turn(self) -> None:
        """Look after the standby driver, and after the hosts without ranks; let the job grow, if it can."""
        if self._standby:
            others = [host.host.name for host in self._plan.hosts[1:]]
            self._standby.ensure([self._host(name) for name in (*others, *self._plan.spares)])
            for line in self._standby.lines():
                self._say(line)
        for name, why in self.reserve.lost().items():
            self._say(f"{name}, which has no rank: {why}")
            self._seek(name)
        for name in self.reserve.arrived():
            self._say(f"{name} answers again; the next attempt can use it")
        if self._spec.grow and not self._growth.sent and self._could_grow() and self._growth.look():
            self._say("SIGUSR1 was sent to every rank: after it has saved, the job goes on with more")

    def noted(self, result: LaunchResult) -> LaunchResult:
        """The result of the attempt; whether its ranks have saved so that more of them can start."""
        saved = result.failure and result.failure.exit_status == PREEMPTED
        return dataclasses.replace(result, grows=bool(self._growth.sent and saved))

    def hand_to(self, kept: KeptHosts) -> None:
        """The attempt is over, and another one may take over the hosts without ranks."""
        self.answering = frozenset(self.reserve.channels)
        self.reserve.hand_to(kept)

    def over(self, spec: LaunchSpec, result: LaunchResult) -> None:
        """The job is over: no driver may start it again."""
        if self._standby:
            fence.end(spec, self._open_pipe)
            self._standby.record("result.json", result.as_json())
            self._standby.end()

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
