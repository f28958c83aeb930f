"""`muster run`, `put`, `get`, `shell` and `clean`: tasks that otherwise need a loop over the hosts."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from pathlib import Path

from ..adhoc import run as fanout
from ..adhoc import transfer
from ..connect.cluster import Cluster
from ..connect.opener import config_beside
from ..connect.transports.ssh_config import ssh_options
from ..console.fold import fold, fold_names
from ..console.progress import MANY, Progress
from ..console.terminal import harmless
from ..console.text import count, size
from ..errors import MusterError, UnfitError, UsageError, lines_of
from ..hosts import hostfile
from .command import Exit, Values
from .command import command as declare
from .inventory import cluster_of
from .shared import HELP, explained

DAY = 86400.0
DEFAULT_DAYS = 7
NOT_FOUND = 127
"""The exit status of a command that is not on the host, as in a shell."""
WORTH_SHOWING = 1 << 24
"""Total bytes below which no progress is shown, because the copy is quick."""


@declare(
    help={**HELP, "command": "the command, quoted as for a shell", "timeout": "seconds, for each host"},
    values={"timeout": Values(1)},
    rest="command",
    rest_after_words=True,
)
def run(  # noqa: PLR0917  # a flag for each parameter
    command: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    timeout: int = 0,
    python: str = "",
) -> None:
    """Run a command on every host, and show equal outputs as one. The highest exit status counts.

    muster run nvidia-smi -L                 the words are passed as they are, without a shell
    muster run -- sh -c "df -h | tail -1"    with a shell
    """
    with explained("interrupted; the command is ended on every host"):
        argv = _words(command)
        if not (argv and argv[0].strip()):
            raise UsageError("what to run? muster run COMMAND")
        with (
            _reached(hosts, include, exclude, python) as (cluster, errors),
            Progress(sys.stderr, argv[0], unit="hosts", least=MANY) as progress,
        ):
            ran = fanout.run(cluster, argv, timeout or None, progress.show) if cluster.channels else {}
        for names, ended in fold(ran.items()):
            sys.stdout.write(_shown(fold_names(names), ended))
        sys.stderr.write("".join(f"{harmless(line)}\n" for line in lines_of(errors.items())))
        if shlex.quote(argv[0]) != argv[0] and any(ended.status == NOT_FOUND for ended in ran.values()):
            with_shell = shlex.join(["sh", "-c", *argv])
            sys.stderr.write(
                f"no shell reads the command; with a shell: muster run -- {harmless(with_shell)}\n"
            )
        status = max([*(ended.status for ended in ran.values()), UnfitError.exit_status if errors else 0])
        if status:
            raise Exit(code=status)


@declare(
    help={
        **HELP,
        "file": "a file or folder here",
        "to": "the path on the hosts, absolute or relative to the home, where the login may write; "
        "to put it into a folder, end the path with /",
    },
    words=("file", "to"),
)
def put(  # noqa: PLR0917  # a flag for each parameter
    file: str = "",
    to: str = "./",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    python: str = "",
) -> None:
    """Copy a file or folder to every host; to all hosts or to none.

    A file replaces a file that exists there. A folder replaces nothing. Content that a host already has, also
    from an interrupted put, is not sent again.
    """
    with explained():
        if not file:
            raise UsageError("which file? muster put FILE [TO]")
        if not Path(file).exists():
            raise UsageError(f"{file}: no such file or folder here")
        with cluster_of(hosts, include, exclude, python) as cluster:
            with Progress(sys.stderr, file, least=WORTH_SHOWING) as progress:
                sent = transfer.put(cluster, Path(file), to, progress.add)
            note = "" if any(sent.values()) else "; nothing had to be sent"
            sys.stdout.write(f"{fold_names(cluster.channels)}: {file}{note}\n")


@declare(
    help={**HELP, "file": "a file or folder on the hosts", "to": "the folder here (default: this one)"},
    words=("file", "to"),
)
def get(  # noqa: PLR0917  # a flag for each parameter
    file: str = "",
    to: str = ".",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    python: str = "",
) -> None:
    """Copy a file or folder of every host here, as NAME@HOST.SUFFIX."""
    with explained():
        if not file:
            raise UsageError("which file? muster get FILE [TO]")
        with cluster_of(hosts, include, exclude, python) as cluster:
            with Progress(sys.stderr, file, least=WORTH_SHOWING) as progress:
                paths = transfer.get(cluster, file, Path(to), progress.add)
            sys.stdout.writelines(f"{path}\n" for path in paths)


@declare(help={"hosts": HELP["hosts"], "host": "the name of the host in the hosts file"}, words=("host",))
def shell(host: str = "", hosts: str = "hosts.txt") -> None:
    """Log in to a host as Muster does."""
    with explained():
        if not host:
            raise UsageError("which host? muster shell HOST")
        chosen, *others = hostfile.select(hostfile.load(Path(hosts)), host)
        if others:
            raise UsageError(
                f"{host} names {count(1 + len(others), 'host')}, and a shell is on one host: "
                f"muster shell {chosen.name}"
            )
        if chosen.is_local:
            raise UsageError(f"{host} is this machine: you are there")
        options = ssh_options(chosen, config_beside(Path(hosts)))
        sys.stdout.flush()
        os.execvp("ssh", ["ssh", *options, "--", chosen.name])  # noqa: S606  # ssh replaces this process


@declare(
    help={
        **HELP,
        "older-than": f"days since the last write to the folder (default: {DEFAULT_DAYS})",
        "json": "for programs",
    },
    values={"older-than": Values(0)},
)
def clean(  # noqa: PLR0917  # a flag for each parameter
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    older_than: int = DEFAULT_DAYS,
    json: bool = False,
    python: str = "",
) -> None:
    """Remove the folders of old jobs on the hosts with all their files. Those of running jobs stay."""
    with explained(), contextlib.ExitStack() as stack:
        cluster, errors = stack.enter_context(_reached(hosts, include, exclude, python))
        cleanups = fanout.clean(cluster, older_than * DAY)
        if json:
            sys.stdout.write(
                dumps({host: asdict(cleanup) for host, cleanup in cleanups.items()}, indent=2) + "\n"
            )
        else:
            for host, cleanup in cleanups.items():
                jobs = f"{len(cleanup.removed)} jobs removed, {len(cleanup.kept)} kept"
                sys.stdout.write(f"{host}: {jobs}, {size(cleanup.freed)} freed\n")
        if errors:
            raise UnfitError(errors.items())


def _words(command: str) -> list[str]:
    """The words of a command, split as by a shell."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command {command!r}: {error}; quote it as in a shell") from None


@contextlib.contextmanager
def _reached(
    hosts: str, include: str, exclude: str, python: str
) -> Iterator[tuple[Cluster, dict[str, MusterError]]]:
    """The cluster, connected, and the errors of the hosts that cannot be reached."""
    cluster = cluster_of(hosts, include, exclude, python)
    with contextlib.closing(cluster):
        yield cluster, cluster.connect()


def _shown(names: str, ended: fanout.Ended) -> str:
    """`node[1-3]: a single line`, or several lines below the names; with how it ended, if it failed."""
    head = f"{names} ({ended.end})" if ended.end else names
    lines = [harmless(line) for line in ended.output.rstrip("\n").split("\n")]
    if len(lines) == 1:
        return f"{head}: {lines[0]}".rstrip() + "\n"
    return "".join([f"{head}:\n", *(f"    {line}\n" for line in lines)])
