"""Leases GPUs for a job, on all of its hosts or on none.

The agent of each host claims them (on_host/leases.py). A job queues on all hosts, and gets nothing that those
before it wait for. Each host dates its arrival, and the last date counts on every host. So the order is
the same everywhere, and nobody holds some hosts while it waits for others: no two jobs wait for each other,
and the first one in the queue gets everything as soon as those who have it end.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict

from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.errors import HostError, UnfitError, lines_of
from ...core.job.events import Said, Stage, Waiting
from ...core.job.feature import Feature, Start
from ...core.plan.launch_plan import Contribution
from ...core.text.terminal import harmless
from ...core.text.text import duration
from .messages import LEASE, LEASE_END, Lease
from .plan import LeaseOptions, impossible, lease_request, refused, visible

PATIENCE_SECONDS = 3.0
"""For the processes of a job that has just ended, and its agents, to end too."""
AGAIN_SECONDS = 20.0
"""The same at a restart: an agent that lost its driver ends after 12 s of silence."""
POLL_SECONDS, SLOWEST_POLL, AHEAD_SECONDS = 0.25, 3.0, 2.0
ASK_SECONDS = 40.0
SHARED = "other users lease GPUs there too, in /tmp: {}; let `muster setup` make a folder for that"


class Leases(Feature):
    """Leases the GPUs of each host for its ranks."""

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """Wait for them as long as the user wants."""
        leasing = LeaseRequests(start, cluster)
        leases = leasing.look() if start.is_dry_run else leasing.take()
        for note in () if start.spec.attempt else leasing.notes:
            start.emit(Said(note))
        return {
            host: Contribution(gpus=tuple(device.index for device in each.got), env=visible(start.spec, each))
            for host, each in leases.items()
        }


class LeaseRequests:
    """Leases what an attempt wants on connected hosts."""

    def __init__(self, start: Start, cluster: Cluster) -> None:
        self._spec, self._cluster, self._emit = start.spec, cluster, start.emit
        counts, facts = start.placement.counts, cluster.facts
        requests = [  # of spares too, so that they can take the place of others
            (host.name, lease_request(start.spec, counts.get(host.name, host.slots), facts[host.name]))
            for host in start.placement.connected
            if host.name in facts
        ]
        self._requests = {name: each for name, each in requests if each}
        self._answers: Mapping[str, Lease] = {}
        self._queued = 0.0
        self.notes: list[str] = []
        """Lines for the user, after an attempt to lease."""

    def take(self) -> Mapping[str, Lease]:
        """Lease everything; `UnfitError` that names the holders if it is not free in time."""
        began, pause, waits = time.monotonic(), POLL_SECONDS, self._spec.of(LeaseOptions).wait
        patience = AGAIN_SECONDS if self._spec.attempt else PATIENCE_SECONDS
        is_noted = waits == 0
        while (leased := self._try()) is None:
            if waits is not None and time.monotonic() - began > max(waits, patience):
                raise UnfitError(self._refused().items())
            if not is_noted:
                self._emit(Waiting(self._line()))
                is_noted = True
            self._emit(Stage(lambda: f"{self._line()} ({duration(time.monotonic() - began)})"))
            time.sleep(pause)
            pause = min(pause * 1.5, SLOWEST_POLL)
        return leased

    def look(self) -> Mapping[str, Lease]:
        """What it would lease now. It keeps nothing."""
        found = self._ask(take=False)
        if found is None:
            raise UnfitError(self._refused().items())
        self._end(self._requests)
        return found

    def _try(self) -> Mapping[str, Lease] | None:
        """Lease everything if all of it is free, else nothing."""
        # A single host gives all or nothing; and a restart holds what it has.
        if len(self._requests) > 1 and not self._spec.attempt and self._ask(take=False) is None:
            return None
        return self._ask(take=True)

    def _ask(self, *, take: bool) -> Mapping[str, Lease] | None:
        """What each host gives, or would give; None if that is too little."""
        requests, spec = self._requests, self._spec
        channels = {name: self._cluster.channels[name] for name in requests}
        same = {"job": spec.job, "user": spec.user, "queued": self._queued, "take": take}
        asked = ask_every(channels, LEASE, ASK_SECONDS, lambda host: {**same, **asdict(requests[host])})
        answers = self._answers = asked.require_all()
        self._agree([lease.arrived for lease in answers.values() if lease.arrived])
        self.notes = _notes(answers)
        if never := {host: error for host in answers if (error := impossible(requests[host], answers[host]))}:
            raise UnfitError(never.items())
        return answers if all(lease.ready for lease in answers.values()) else None

    def _agree(self, dates: Sequence[float]) -> None:
        """Choose one date of arrival for all hosts: none takes an earlier one than its own.

        It lies ahead, so that every host has got it by then.
        """
        if len({*dates}) > 1:
            self._queued = max(dates) + AHEAD_SECONDS

    def _end(self, hosts: Container[str]) -> None:
        channels = {name: self._cluster.channels[name] for name in self._requests if name in hosts}
        ask_every(channels, LEASE_END, ASK_SECONDS).require_all()

    def _refused(self) -> dict[str, HostError]:
        now, missing = time.time(), self._answers.items()
        return {host: refused(self._requests[host], lease, now) for host, lease in missing if not lease.ready}

    def _line(self) -> str:
        """`waits for GPUs: node1: 4 GPUs wanted, 2 free: GPUs 0-5: job JOB of alice for 2 h`."""
        first = next(iter(self._refused().items()), None)
        return f"waits for its lease: {first[0]}: {first[1].text}" if first else "waits for its lease"


def _notes(answers: Mapping[str, Lease]) -> list[str]:
    """What users should know about the leases of hosts that others use too."""
    found = [
        (host, SHARED.format(", ".join(lease.beside))) for host, lease in answers.items() if lease.beside
    ]
    return [f"note: {harmless(line)}" for line in lines_of(found)]
