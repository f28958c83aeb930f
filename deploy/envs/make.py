"""Lets hosts make an environment: what it consists of goes there through the tree, each host makes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..connect.pipe import why_lost
from ..connect.reports import EnvironmentMade, Lost, Report
from ..connect.requests.packages import ENVIRONMENT_MAKE
from ..connect.transfer.files import LocalFile, serve, transfers_of
from ..connect.transfer.transfers import Tell, Transfers
from ..console.text import count
from ..errors import UnfitError
from ..hosts.facts import Environment
from .fetch import Wheel
from .lock import Lock
from .wanted import Requirements

HEAR_SECONDS = 2.0
MAKE_SECONDS = 6 * 3600.0  # a host may fetch gigabytes from its index


class Making:
    """An environment that hosts make, those that are `online` from the index, the others from wheels.

    `tool`: the digest of uv's program. `tell`: gets a line for each host that is done.
    """

    def __init__(
        self,
        cluster: Cluster,
        lock: Lock,
        wanted: Requirements,
        *,
        tool: str,
        wheels: Sequence[Wheel],
        online: Collection[str],
        tell: Callable[[str], None],
    ) -> None:
        self._cluster, self._lock, self._wanted = cluster, lock, wanted
        self._tool, self._wheels, self._online, self._tell = tool, wheels, online, tell
        self._made: dict[str, Environment] = {}
        self._errors: dict[str, str] = {}

    def bring(self, files: Sequence[LocalFile], needed: Mapping[str, Sequence[str]], tell: Tell) -> None:
        """Bring the files to the hosts that need them; `UnfitError` for hosts that did not get them."""
        transfers = Transfers(self._cluster, serve(self._cluster, "wheels", needed), tell)
        wanted = transfers_of(files, needed)
        transfers.bring(wanted, sum(file.size * len(file.hosts) for file in wanted))
        for note in transfers.notes:
            self._tell(note)
        if transfers.lost:
            raise UnfitError(transfers.lost.items())

    def make(self, hosts: Sequence[str]) -> dict[str, Environment]:
        """Let each host make the environment; `UnfitError` with the words of every host that could not."""
        on_every(hosts, self._begin).require_all()
        waiting, deadline = {*hosts}, time.monotonic() + MAKE_SECONDS
        while waiting and time.monotonic() < deadline:
            event = self._cluster.hear(HEAR_SECONDS)
            if event and event.host in waiting:
                waiting.discard(event.host)
                self._take(event.host, event.report)
        self._errors |= dict.fromkeys(
            waiting, f"cannot make the environment: not done after {MAKE_SECONDS / 3600:.0f} hours"
        )
        if self._errors:
            raise UnfitError((host, self._errors[host]) for host in hosts if host in self._errors)
        return self._made

    def _begin(self, host: str) -> None:
        text, words = self._request(host)
        self._cluster.channels[host].ask(ENVIRONMENT_MAKE, text.encode(), **words)

    def _request(self, host: str) -> tuple[str, dict[str, Any]]:
        online = host in self._online
        pins = "".join(f"{package.name}=={package.version}\n" for package in self._lock.packages)
        return self._lock.text if online else pins, {
            "key": self._lock.key,
            "source": self._lock.source,
            "python": self._wanted.python,
            "system": self._wanted.system_torch,
            "uv": self._tool,
            "index": online,
            "wheels": [] if online else [[wheel.digest, wheel.name] for wheel in self._wheels],
        }

    def _take(self, host: str, report: Report) -> None:
        match report:
            case EnvironmentMade(seconds, Environment() as made):
                self._made[host] = made
                self._tell(f"{host}: {count(made.packages, 'package')}, made in {seconds:.1f} s")
            case EnvironmentMade(error=error):
                reason = f": {error}" if error else "; the host reported no reason"
                self._errors[host] = f"cannot make the environment{reason}"
            case Lost(reason):
                self._errors[host] = why_lost(reason, reason.reason)
            case _:
                self._errors[host] = "protocol error: an unexpected report"
