"""`muster run`, `put`, `get` and `shell`: tasks that otherwise need a loop over the hosts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from ...cli.command import Command, Exit
from ...cli.inventory import cluster_of, reached_hosts
from ...cli.job_lookup import names_job
from ...cli.running_job import running
from ...cli.shared import (
    HOSTS,
    HOSTS_ALSO,
    RUNS,
    RUNS_FOLDER,
    HostOptions,
    JobOptions,
    hosts_file_of,
    print_note,
)
from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.opener import config_beside
from ...core.connect.pipe import LostError, why_lost
from ...core.connect.reports import Lost, Report
from ...core.connect.requests import Nothing
from ...core.connect.transports.ssh_config import ssh_options
from ...core.errors import MusterError, UnfitError, UsageError, lines_of
from ...core.hosts import hostfile
from ...core.hosts.stuck_processes import not_ended
from ...core.plan.flags import flag
from ...core.text.fold import fold, fold_names
from ...core.text.progress import MB, Progress
from ...core.text.terminal import harmless
from ...core.text.text import count, describe_code, status_of
from ...core.waits import waiting
from ...core.wire.job_folders import FILES_FOLDER
from . import put_get as transfer
from .messages import RUN, CommandRan

HEAR_SECONDS = 2.0
TIMED_OUT, LOST, NOT_FOUND = 124, 3, 127  # as of timeout(1), a host that is not fit, a command not found


@dataclass(frozen=True)
class Ended:
    """The end of a command on one host. Hosts with equal ends are shown together."""

    status: int
    end: str
    """Its end as text, empty for exit status 0."""
    output: str


def run_on_hosts(cluster: Cluster, argv: Sequence[str], seconds: float | None) -> dict[str, Ended]:
    """Run a command on every connected host. Leaving the cluster's context ends its processes."""
    left = dict(cluster.channels)
    posted = {host: channel.post(RUN, argv=list(argv), limit=seconds) for host, channel in left.items()}
    ended: dict[str, Ended] = {}
    with waiting(hosts=left) as noted:
        while left:
            event = cluster.hear(HEAR_SECONDS)
            newly = {event.host: _ended(event.report)} if event and left.pop(event.host, None) else {}
            newly |= _refused(left, posted)
            for host in newly:
                noted.over_for(host)
            ended |= newly
    return {host: ended[host] for host in cluster.channels}


def _refused(left: dict[str, Channel], posted: Mapping[str, Future[Nothing]]) -> dict[str, Ended]:
    """Stop waiting for hosts whose agent could not start the command, because no report follows."""
    refused = {}
    for host in [*left]:
        error = posted[host].exception() if posted[host].done() else None
        # A lost connection has a report.
        if isinstance(error, MusterError) and not isinstance(error, LostError):
            del left[host]
            refused[host] = Ended(LOST, error.reason, "")
    return refused


def _ended(report: Report) -> Ended:
    if isinstance(report, Lost):
        return Ended(LOST, why_lost(report.reason), "")
    if not isinstance(report, CommandRan):
        return Ended(LOST, "protocol error: an unexpected report", "")
    output = report.output.decode(errors="replace")
    if report.cut:
        output += f"\n({report.cut} bytes more)\n"
    if report.timed_out:
        stuck = f"; {not_ended(report.left)}" if report.left else ""
        return Ended(TIMED_OUT, f"timed out{stuck}", output)
    return Ended(status_of(report.code), describe_code(report.code) if report.code else "", output)


MOST_PATHS = 20  # that `get JOB` names


@dataclass(frozen=True)
class Run(HostOptions):
    """Run a command on every host, and show equal outputs as one.

    The highest exit status is that of this command.

    muster run nvidia-smi -L                 passed unchanged, without a shell
    muster run -- sh -c "df -h | tail -1"    with a shell
    """

    interrupted = "interrupted; the command is ended on every host"

    command: str = flag(
        "", "the command, quoted as for a shell", "COMMAND", takes="program", required="what to run?"
    )
    timeout: int = flag(0, "seconds, for each host", "SECONDS", least=1)

    def run(self) -> None:
        """Run it, show the outputs, and exit with the highest status."""
        try:
            argv = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"--command {self.command!r}: {error}; quote it as in a shell") from None
        if not (argv and argv[0].strip()):
            raise UsageError("what to run? muster run COMMAND ...")
        with reached_hosts(self) as (cluster, errors):
            ran = run_on_hosts(cluster, argv, self.timeout or None)
            for names, ended in fold(ran.items()):
                sys.stdout.write(_shown(fold_names(names), ended))
            for line in lines_of(errors.items()):
                print_note(line)
            if shlex.quote(argv[0]) != argv[0] and any(ended.status == NOT_FOUND for ended in ran.values()):
                with_shell = shlex.join(["sh", "-c", *argv])
                print_note(f"this ran without a shell; with a shell: muster run -- {with_shell}")
            status = max([*(ended.status for ended in ran.values()), UnfitError.exit_status if errors else 0])
            if status:
                raise Exit(code=status)


@dataclass(frozen=True)
class Put(HostOptions):
    """Copy a file or folder to every host; to all hosts or to none.

    A file replaces a file that exists there. A folder replaces nothing. Content that a host already has, also
    from an interrupted put, is not sent again.
    """

    file: str = flag("", "a file or folder here", takes="positional", required="which file?")
    to: str = flag(
        "./",
        "the path on the hosts, absolute or relative to the home, where the login may write; "
        "to put it into a folder, end the path with /",
        takes="positional",
    )

    def run(self) -> None:
        """Copy it, and name the hosts."""
        if not Path(self.file).exists():
            raise UsageError(f"{self.file}: no such file or folder here")
        with cluster_of(self) as cluster:
            with Progress(self.file, unit=MB) as progress:
                sent = transfer.put(cluster, Path(self.file), self.to, progress.add)
            note = "" if any(sent.values()) else "; nothing had to be sent"
            sys.stdout.write(f"{fold_names(cluster.channels)}: {self.file}{note}\n")


@dataclass(frozen=True)
class Get(HostOptions):
    """Copy a file of every host here, as NAME@HOST.SUFFIX; or what a job wrote.

    muster get data/set.csv here   from each home, as here/set@node1.csv
    muster get JOB                 what a job wrote, into runs/JOB/files
    muster get JOB checkpoints     only the files of this folder

    A job writes beside its code, or into $MUSTER_OUT.
    """

    file: str = flag(
        "",
        "a file or folder on the hosts, or the id of a job, or its last four characters",
        takes="positional",
        required="which file or job?",
    )
    to: str = flag(
        "",
        "the folder here (default: this one); after a job: only the files at or below this path",
        takes="positional",
    )
    runs: str = flag(RUNS_FOLDER, RUNS, "FOLDER")

    def run(self) -> None:
        """Copy them, and print the paths here."""
        same = ("hosts", "runs", "python", "sources")
        options = JobOptions(job=self.file, **{name: getattr(self, name) for name in same})
        if names_job(self.file, options.runs_folder):
            self._run_for_job(options)
        else:
            self._run_for_path()

    def _run_for_job(self, options: JobOptions) -> None:
        inner = "" if self.to in {"", "."} else os.path.normpath(self.to)
        with running(options, (self.include, self.exclude)) as job:
            folder = options.runs_folder / job.state.job / FILES_FOLDER
            with Progress(f"files of {job.state.job}", unit=MB) as progress:
                paths, errors, left_out, absent = transfer.get_files(
                    job.channels, job.state.job, inner, folder, progress.add
                )
        sys.stdout.writelines(f"{harmless(str(path))}\n" for path in paths[:MOST_PATHS])
        sys.stdout.write(f"{len(paths) - MOST_PATHS} more in {folder}\n" if paths[MOST_PATHS:] else "")
        failed = [*job.silent.items(), *((host, error.reason) for host, error in errors.items())]
        for line in [*lines_of(failed), *[*absent.values(), *left_out][:MOST_PATHS]]:
            print_note(line)
        if failed or absent:
            raise Exit(code=UnfitError.exit_status)
        if not paths:
            what = f"no file {inner}" if inner else "no files beside its code or in $MUSTER_OUT"
            where = fold_names(job.channels.keys() - errors)
            raise MusterError(f"{job.state.job} has left {what} on {where}")

    def _run_for_path(self) -> None:
        with reached_hosts(self) as (cluster, errors):
            with Progress(self.file, unit=MB) as progress:
                got = transfer.get(cluster, self.file, Path(self.to or "."), progress.add)
            errors.update(got.errors)
            sys.stdout.writelines(f"{path}\n" for path in got.results.values())


@dataclass(frozen=True)
class Shell(Command):
    """Log in to a host as Muster does."""

    host: str = flag("", "the name of the host in the hosts file", takes="positional", required="which host?")
    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)

    def run(self) -> None:
        """Replace this process by ssh."""
        hosts_file = hosts_file_of(self.hosts)
        chosen, *others = hostfile.select(hostfile.load(hosts_file), self.host)
        if others:
            raise UsageError(
                f"{self.host} names {count(1 + len(others), 'host')}, and a shell needs one host: "
                f"muster shell {chosen.name}"
            )
        if chosen.is_local:
            raise UsageError(f"{self.host} is this machine, so no login is needed")
        options = ssh_options(chosen, config_beside(hosts_file))
        Progress.close_all()
        sys.stdout.flush()
        os.execvp("ssh", ["ssh", *options, "--", chosen.name])  # noqa: S606  # ssh replaces this process


def _shown(names: str, ended: Ended) -> str:
    """`node[1-3]: a single line`, or several lines below the names; with its end, if it failed."""
    head = f"{names} ({ended.end})" if ended.end else names
    lines = [harmless(line) for line in ended.output.rstrip("\n").split("\n")]
    if len(lines) == 1:
        return f"{head}: {lines[0]}".rstrip() + "\n"
    return "".join([f"{head}:\n", *(f"    {line}\n" for line in lines)])
