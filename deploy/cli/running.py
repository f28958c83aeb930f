"""The running job that a command looks into, its hosts while they are connected, and the silent ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..connect.channel import Channel
from ..connect.cluster import Cluster, expect_ranks
from ..connect.opener import Access
from ..connect.requests.jobs import JobState
from ..console.fold import fold_names
from ..console.terminal import harmless
from ..errors import MusterError, UnfitError, lines_of
from ..hosts import hostfile
from ..hosts.hostfile import Host
from ..jobs.table import outcome
from .command import Exit
from .job_lookup import JobSearch, look, say_which, way_to
from .shared import JobOptions, RecordOptions


class Running(NamedTuple):
    """A job, the channels to the hosts that answer, and why those of its hosts do not that are silent."""

    state: JobState
    channels: dict[str, Channel]
    silent: dict[str, str]


@contextlib.contextmanager
def running(options: JobOptions, select: tuple[str, str] = ("", "")) -> Iterator[Running]:
    """The job of a command, while its hosts are connected.

    Without an id it is the newest that runs, which is named on stderr. `select`: --include and --exclude.

    A host that cannot be reached, or cannot list its jobs, costs no more than its own part if another place
    knows the job. If none does, that host may be the one that has it: `UnfitError` names it.
    """
    job = options.job
    with look(job, options) as found:
        state = (found.named(job) if job else found.newest(running=True)).state
        if not job:
            say_which(state.job, found.lines_but(state.hosts))
        with job_hosts(state, found, options, select) as here:
            yield here


@contextlib.contextmanager
def job_hosts(
    state: JobState, found: JobSearch, options: RecordOptions, select: tuple[str, str] = ("", "")
) -> Iterator[Running]:
    """The hosts on which a job runs, connected as its launch did. `MusterError` if it has none yet."""
    if not state.hosts:
        raise MusterError(f"{state.job} has no hosts yet: {state.why}")
    listed, access = way_to(state, found, options)
    wanted = hostfile.select([host for host in listed if host.name in state.hosts], *select)
    lacking = () if any(select) else sorted({*state.hosts} - {host.name for host in wanted})
    places = state.places
    unlisted = dict.fromkeys(lacking, f"not in {options.hosts_file}")
    with connected(wanted, access, found) as (channels, silent):
        expect_ranks(channels, places)
        yield Running(state, channels, {**silent, **unlisted})


@contextlib.contextmanager
def connected(
    wanted: Sequence[Host], access: Access, found: JobSearch
) -> Iterator[tuple[dict[str, Channel], dict[str, str]]]:
    """The channels to these hosts, and why there is none to a host; those that were asked before stay so."""
    before = [asked.cluster for asked in found.asked if asked.access == access]
    tried = {host for cluster in before for host in cluster.hosts}
    channels = {name: channel for cluster in before for name, channel in cluster.channels.items()}
    silent = {
        host.name: found.silent[host.name] for host in wanted if host in tried and host.name in found.silent
    }
    rest = Cluster([host for host in wanted if host not in tried], access.open, facts=False)
    with contextlib.closing(rest):
        silent |= {host: error.reason for host, error in rest.connect().items()}
        channels |= rest.channels
        yield {host.name: channels[host.name] for host in wanted if host.name in channels}, silent


def no_rank(state: JobState) -> str:
    """Why a command has nothing to show: no host of the job has a rank of it."""
    return f"no rank of {state.job} runs on {fold_names(state.hosts)}; the job is {outcome(state)}"


def exit_if_silent(silent: Mapping[str, str]) -> None:
    """Exit with 3 if hosts of the job are silent, and give the reasons."""
    if silent:
        raise Exit("\n".join(map(harmless, lines_of(silent.items()))), UnfitError.exit_status)
