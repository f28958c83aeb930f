"""The running job of a command, its hosts while they are connected, and the silent ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..core.connect.channel import Channel
from ..core.connect.cluster import Cluster, expect_ranks
from ..core.connect.requests import JobState
from ..core.errors import MusterError, UnfitError, lines_of
from ..core.hosts import hostfile
from ..core.hosts.hostfile import Host
from ..core.text.fold import fold_names
from ..core.text.terminal import harmless
from ..features.slurm.mark import mark_of
from .command import Exit
from .job_lookup import JobSearch, look, print_which, route_to
from .job_table import outcome
from .shared import JobOptions, RecordOptions


class Running(NamedTuple):
    """A job, the channels to its hosts that answer, and the reasons why the other hosts are silent."""

    state: JobState
    channels: dict[str, Channel]
    silent: dict[str, str]


@contextlib.contextmanager
def running(options: JobOptions, select: tuple[str, str] = ("", "")) -> Iterator[Running]:
    """The job of a command, while its hosts are connected.

    Without an id it is the newest of this user that runs, and stderr names it. `select`: --include and
    --exclude.

    If a host cannot be reached or cannot list its jobs, only its part is missing, as long as another host or
    this machine has the job. If none has it, the silent host may: `UnfitError` names it.
    """
    job = options.job
    with look(job, options, newest=not job) as search:
        state = (search.named(job) if job else search.default("newest running")).state
        if not job:
            print_which(state.job, search.lines_but(state.hosts))
        with job_hosts(state, search, options, select) as connected_job:
            yield connected_job


@contextlib.contextmanager
def job_hosts(
    state: JobState, search: JobSearch, options: RecordOptions, select: tuple[str, str] = ("", "")
) -> Iterator[Running]:
    """The hosts on which a job runs, connected as its launch did. `MusterError` if it has none.

    Channels of the search are used again.
    """
    if not state.hosts:
        raise MusterError(f"{state.job} has no hosts yet: {state.why}")
    before = list[Cluster]()
    if mark := mark_of(options.runs_folder / state.job):
        if not state.running:  # nor do its hosts belong to it
            raise MusterError(no_rank(state))
        from ..features.slurm.allocation import more_steps

        listed: Sequence[Host] = [*map(Host, state.hosts)]
        open_pipe = more_steps(mark, state.hosts, state.attempt, options.python)
    else:
        listed, access = route_to(state, search, options)
        open_pipe = access.open
        before = [hosts.cluster for hosts in search.connected if hosts.access == access]
    wanted = hostfile.select([host for host in listed if host.name in state.hosts], *select)
    lacking = () if any(select) else sorted({*state.hosts} - {host.name for host in wanted})
    unlisted = dict.fromkeys(lacking, f"not in {options.hosts_file}")
    tried = {host for cluster in before for host in cluster.hosts}
    known = {name: channel for cluster in before for name, channel in cluster.channels.items()}
    why = search.silent
    silent = {host.name: why[host.name] for host in wanted if host in tried and host.name in why}
    rest = Cluster([host for host in wanted if host not in tried], open_pipe, facts=False)
    with contextlib.closing(rest):
        silent |= {host: error.reason for host, error in rest.connect().items()}
        known |= rest.channels
        channels = {host.name: known[host.name] for host in wanted if host.name in known}
        expect_ranks(channels, state.hosts_by_rank)
        yield Running(state, channels, {**silent, **unlisted})


def no_rank(state: JobState) -> str:
    """The message for a job without a rank on its hosts."""
    return f"no rank of {state.job} runs on {fold_names(state.hosts)}; the job is {outcome(state)}"


def exit_if_silent(silent: Mapping[str, str]) -> None:
    """Exit with 3 if hosts of the job are silent, and give the reasons."""
    if silent:
        raise Exit("\n".join(map(harmless, lines_of(silent.items()))), UnfitError.exit_status)
