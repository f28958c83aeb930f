"""The stages of a launch up to the first output of its ranks, as lines of progress.

Each is read again and again by the thread that draws the line (core/text/progress.py), while others change
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from .. import waits
from ..connect.channel import Channel
from ..connect.requests import EndedProcess, RankProcess, Stopping
from ..text.progress import ELAPSED_SECONDS
from ..text.text import count, duration, still_saving
from .state import LaunchState

LEAST_BYTES = 1_000_000
"""Less is not worth a count: it is sent in a moment."""


@dataclass
class Sending:
    """What is sent to a host: the bytes of files, and how many of them are in finished archives."""

    channel: Channel
    total: int
    done: int = 0
    _size: int = 0
    _archive_bytes: int = 1
    _began_at: int = 0

    def begin(self, size: int, archive_bytes: int) -> None:
        """The next archive is written now, with so many bytes of files."""
        self.done += self._size
        self._size, self._archive_bytes, self._began_at = size, archive_bytes, self.channel.writer.written

    @property
    def sent(self) -> int:
        """The bytes of files that are written to the host, a part of an archive included."""
        share = (self.channel.writer.written - self._began_at) / self._archive_bytes
        return min(self.total, self.done + int(self._size * min(1.0, share)))


class DeliveryStage:
    """`sending 212 of 300 MB to 3 hosts, 7 s left (largest: big/w.bin)`, then which hosts are not ready."""

    def __init__(self) -> None:
        self._lock, self._sending = threading.Lock(), list[Sending]()
        self._largest, self._began = (0, ""), time.monotonic()
        self._waiting = waits.with_hosts("sending files")

    def send(self, channel: Channel, sizes: Mapping[str, int]) -> Sending:
        """Files are sent to a host. `sizes`: the bytes of each, by its path."""
        sending = Sending(channel, sum(sizes.values()))
        largest = max(((size, path) for path, size in sizes.items()), default=(0, ""))
        with self._lock:
            self._sending.append(sending)
            self._largest = max(self._largest, largest)
        return sending

    def __call__(self) -> str:
        sendings = [*self._sending]
        total, sent = sum(each.total for each in sendings), sum(each.sent for each in sendings)
        if total < LEAST_BYTES or sent >= total:
            return self._waiting()
        receivers = {each.channel.host for each in sendings if each.total}
        seconds, left = time.monotonic() - self._began, ""
        if seconds >= ELAPSED_SECONDS and sent:
            left = f", {duration(int((total - sent) * seconds / sent))} left"
        to = f"to {count(len(receivers), 'host')}{left} (largest: {self._largest[1]})"
        return f"sending {sent / 1e6:.0f} of {total / 1e6:.0f} MB {to}"


class EndStage:
    """`ending the job on 2 hosts`, then which ranks still handle SIGTERM, or what ranks have left behind."""

    def __init__(self, state: LaunchState, hosts: int) -> None:
        what = "ending the job" if state.failures else "removing temporary files"
        self._what, self._began = f"{what} on {count(hosts, 'host')}", time.monotonic()
        self._hosts: dict[str, Stopping] = {}

    def note(self, host: str, stopping: Stopping) -> None:
        self._hosts[host] = stopping

    @property
    def saving(self) -> list[int]:
        """The ranks that still handle SIGTERM."""
        return sorted(rank for stopping in [*self._hosts.values()] for rank in stopping.saving)

    def __call__(self) -> str:
        hosts = {**self._hosts}
        seconds = duration(int(time.monotonic() - self._began))
        if saving := self.saving:
            return f"{still_saving(saving)}, {seconds}; Ctrl-C ends the job now"
        behind = [
            f"{process.name}{of_rank(process)} on {host}"
            for host, stopping in hosts.items()
            for process in stopping.behind
        ]
        if behind:
            more = f" and {len(behind) - 1} more" if len(behind) > 1 else ""
            return f"every rank is done; waiting for {behind[0]}{more}, {seconds}; Ctrl-C ends it now"
        return self._what


def of_rank(process: RankProcess | EndedProcess) -> str:
    """` of rank 3`; empty if its rank is not known."""
    return "" if process.rank is None else f" of rank {process.rank}"
