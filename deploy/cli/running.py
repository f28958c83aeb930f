"""The running job that a command looks into, its hosts while they are connected, and the silent ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from invoke import Exit

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..connect.requests.jobs import JobState
from ..console.terminal import harmless
from ..errors import MusterError, UnfitError
from ..hosts.hostfile import Host
from ..jobs import control as jobs
from .jobs import say_which

HERE = "here or on these hosts"


class Running(NamedTuple):
    """A job, the channels to the hosts that answer, and why those of its hosts do not that are silent."""

    state: JobState
    channels: dict[str, Channel]
    silent: dict[str, str]


@contextlib.contextmanager
def running(job: str, chosen: Sequence[Host], hosts: str, runs: str, python: str) -> Iterator[Running]:
    """The job with this id, or whose id ends so, while the chosen hosts are connected.

    Without an id it is the newest that runs, which is named on stderr.

    A host that cannot be reached, or cannot list its jobs, costs no more than its own part if another host
    knows the job. If none does, that host may be the one that has it: `UnfitError` names it.
    """
    with contextlib.closing(Cluster(chosen, opener(Path(hosts), python), facts=False)) as cluster:
        errors = cluster.connect()
        unread: dict[str, MusterError] = {}
        places: list[jobs.Place] = [jobs.Here(Path(runs)), *cluster.channels.values()]
        known = jobs.known_to(places, on_error=unread.__setitem__)
        missing = {**errors, **unread}
        if missing and not any(
            entry.state.job.endswith(job) if job else entry.state.running for entry in known
        ):
            raise UnfitError((host or "here", error.reason) for host, error in missing.items())
        cluster.leave_out(missing)
        state = (jobs.only(known, job, HERE) if job else jobs.newest(known, HERE, running=True)).state
        silent = {host: error.reason for host, error in missing.items()}
        if not job:
            others = silent.keys() - set(state.hosts)  # the command itself names those of the job
            say_which(state.job, (f"{host or 'here'}: {silent[host]}" for host in sorted(others)))
        yield Running(state, cluster.channels, {host: silent[host] for host in silent if host in state.hosts})


def exit_if_silent(silent: Mapping[str, str]) -> None:
    """Exit with 3 if hosts of the job are silent, and name each with its reason."""
    if silent:
        lines = [harmless(f"{host}: {reason}") for host, reason in silent.items()]
        raise Exit("\n".join(lines), UnfitError.exit_status)
