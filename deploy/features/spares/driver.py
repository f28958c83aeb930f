"""The hosts of a job without ranks, so that it can heal: spare ones, and lost ones that may answer again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.connect.kept import KeptHosts
from ...core.connect.pipe import OpenPipe
from ...core.connect.reserve import Reserve
from ...core.hosts.hostfile import Host
from ...core.job.feature import Attempt, Feature
from ...core.job.restart_policy import Policy
from ...core.plan.spec import LaunchSpec


class SpareHosts:
    """Looks after them in turns of the driver's loop. `say` gets lines for the user."""

    def __init__(self, open_pipe: OpenPipe, say: Callable[[str], None]) -> None:
        self._open_pipe, self._say = open_pipe, say
        self.reserve = Reserve()
        """The connected hosts without ranks."""
        self.answering: frozenset[str] = frozenset()
        """Those that were connected at the end of the last attempt."""

    def begin(self, spec: LaunchSpec, hosts: Sequence[Host], policy: Policy) -> None:
        """An attempt begins. `hosts`: those that it may use."""
        self._spec = spec
        if not spec.allocation:  # Slurm has taken a lost node out of it
            for name in policy.away - {host.name for host in hosts}:
                self._seek(name)

    def turn(self) -> None:
        """Look after them."""
        for name, why in self.reserve.lost().items():
            self._say(f"{name}, which has no rank: {why}")
            self._seek(name)
        for name in self.reserve.arrived():
            self._say(f"{name} answers again; the next attempt can use it")

    def hand_to(self, kept: KeptHosts) -> None:
        """The attempt is over, and another one may take over the hosts without ranks."""
        self.answering = frozenset(self.reserve.channels)
        self.reserve.hand_to(kept)

    def _seek(self, name: str) -> None:
        self.reserve.seek(self._host(name), self._open_pipe)

    def _host(self, name: str) -> Host:
        return next(host for host in self._spec.hosts if host.name == name)


class TurnsOfSpareHosts(Feature):
    """Looks after the hosts of a job without ranks while an attempt runs."""

    def __init__(self, spares: SpareHosts) -> None:
        self._spares = spares

    def turn(self, attempt: Attempt) -> None:
        """Look after them."""
        self._spares.turn()
