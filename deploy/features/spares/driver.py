"""The hosts of a job without ranks, so that it can heal: spare ones, and lost ones that may answer again."""

from __future__ import annotations

from ...core.connect.kept_connections import KeptConnections
from ...core.job.events import Said
from ...core.job.feature import Attempt, Feature


class SpareHosts(Feature):
    """Holds them while an attempt runs; the next one can take them over."""

    def __init__(self, *, seeks_lost: bool) -> None:
        """`seeks_lost`: whether a host that was lost may answer again."""
        self._seeks_lost = seeks_lost
        self._spares = KeptConnections()

    def begins(self, attempt: Attempt) -> None:
        """Spare hosts are no longer hosts of this attempt."""
        self._spares = attempt.cluster.detach_spares(attempt.plan.spares)
        if self._seeks_lost:
            for name in sorted(attempt.away):
                self._seek(attempt, name)

    def turn(self, attempt: Attempt) -> None:
        """Look after them."""
        for name, why in self._spares.lost().items():
            attempt.emit(Said(f"{name}, which has no rank: {why}"))
            self._seek(attempt, name)
        for name in self._spares.arrived():
            attempt.emit(Said(f"{name} answers again; the next attempt can use it"))

    def _seek(self, attempt: Attempt, name: str) -> None:
        host = next(host for host in attempt.plan.spec.hosts if host.name == name)
        self._spares.seek(host, attempt.cluster.open_pipe)
