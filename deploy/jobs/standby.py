"""The standby driver of a detached job: a process on another host that takes over when the driver is gone.

It gets the job as the driver did (detach.py). The driver pings the agent that has started the standby driver.
Without pings that agent ends, and the standby driver notices that (standby_main.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from queue import Empty, SimpleQueue
from typing import Any

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.pipe import OpenPipe
from ..connect.requests.jobs import RECORD
from ..connect.requests.launch import PING
from ..errors import MusterError
from ..hosts.hostfile import Host
from ..plan.source_tree import Tree
from ..plan.spec import LaunchSpec
from .detach import detach

DRIVER = "muster.deploy.jobs.standby_main"
PING_SECONDS, RETRY_SECONDS = 2.0, 30.0
NOT_NEEDED = "standby.over"
"""The record by which a standby driver knows that it is not needed any more."""
END_SECONDS = 5.0
"""The driver waits no longer until the standby driver knows that the job is over."""


class Standby:
    """Keeps a standby driver on one of the job's hosts, in a thread."""

    def __init__(self, spec: LaunchSpec, open_pipe: OpenPipe) -> None:
        self._spec, self._open_pipe = spec, open_pipe
        self._term, self._host = spec.term, ""
        self._next, self._failed = 0.0, ""
        self._thread: threading.Thread | None = None
        self._over, self._lines = threading.Event(), SimpleQueue[str]()
        self._records: dict[str, str] = {}
        self._recorded: dict[str, str] = {}

    def ensure(self, hosts: Sequence[Host]) -> None:
        """Start one on the first of these hosts, unless one is on any of them; after a failure, later."""
        is_there = self._host in {host.name for host in hosts}
        if hosts and not is_there and time.monotonic() >= self._next:
            self._host, self._recorded = hosts[0].name, {}
            self._term += 1
            self._thread = threading.Thread(target=self._keep, args=(hosts[0], self._term), daemon=True)
            self._thread.start()

    def record(self, name: str, content: Mapping[str, Any]) -> None:
        """Let it keep a record of the job too."""
        self._records[name] = json.dumps(content, indent=2) + "\n"

    def lines(self) -> list[str]:
        """What has happened to it since the last call."""
        said = list[str]()
        while True:
            try:
                said.append(self._lines.get_nowait())
            except Empty:
                return said

    def end(self) -> None:
        """Let it end, with the records: the job is over."""
        self._over.set()
        if self._thread:
            self._thread.join(END_SECONDS)

    def _keep(self, host: Host, term: int) -> None:
        lost = f"no standby driver on {host.name}"
        try:
            with Cluster((host,), self._open_pipe) as cluster:
                self._lines.put(detach(self._spec_for(host, term), cluster, DRIVER))
                lost = f"the standby driver on {host.name} is lost"
                channel = cluster.channels[host.name]
                while not self._over.is_set() and self._host == host.name:
                    channel.ask(PING)
                    self._pass_on(channel)
                    self._over.wait(PING_SECONDS)
                self._pass_on(channel)
                channel.ask(RECORD, job=self._spec.job, name=NOT_NEEDED, text="")
        except MusterError as error:
            self._next = time.monotonic() + RETRY_SECONDS
            if self._failed != (failed := f"{lost}: {error}"):
                self._failed = failed
                self._lines.put(failed)
        if self._host == host.name:
            self._host = ""

    def _pass_on(self, channel: Channel) -> None:
        for name, text in [*self._records.items()]:
            if self._recorded.get(name) != text:
                self._recorded[name] = text
                channel.post(RECORD, job=self._spec.job, name=name, text=text)

    def _spec_for(self, host: Host, term: int) -> LaunchSpec:
        """The job for a driver on this host, which is the first one then."""
        own, *others = self._spec.hosts
        rest = (other for other in (*others, own) if other.name != host.name)
        tree, library = _plain(self._spec.tree), _plain(self._spec.library)
        return replace(self._spec, hosts=(host, *rest), term=term, tree=tree, library=library)


def _plain(tree: Tree) -> Tree:
    """The tree without the store in which this driver has its contents."""
    return Tree(**{field.name: getattr(tree, field.name) for field in fields(Tree)})
