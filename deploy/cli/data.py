"""`muster data push`, `list`, `verify`, `pull` and `remove`: data sets of the hosts."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from functools import partial
from json import dumps
from pathlib import Path

from ..common.data.manifest import require_name
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every, ask_in_turn
from ..connect.requests.data import DATA_LIST, DATA_REMOVE, DATA_VERIFY
from ..console.fold import fold_names
from ..console.progress import Progress
from ..console.terminal import harmless_lines
from ..data import pull as pulling
from ..data import report
from ..data.push import LONG_SECONDS, Push, read_here
from ..data.source import source as source_of
from ..errors import UnfitError, UsageError
from .command import Exit, command
from .inventory import cluster_of, of_file
from .options import size
from .shared import HELP, explained

KEPT = "interrupted; partial data is kept: run the command again to resume"
NAME = "the name of the data set"
JSON = "for programs"
MOST = "100G"


@command(
    words=("source", "name"),
    help={
        **HELP,
        "source": "a folder or file here; head:/PATH, a folder of the first host; or a URL, which it fetches",
        "name": "the name of the data set (default: the name of the folder)",
        "shard": "give each host only a part: every n-th file",
        "most": "the size limit of what a URL gives, such as 500M (default: 100G)",
        "sha256": "the SHA-256 that the file of a URL must have",
    },
)
def push(  # noqa: PLR0917  # a flag for each parameter
    source: str = "",
    name: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    shard: bool = False,
    most: str = "",
    sha256: str = "",
    python: str = "",
) -> None:
    """Bring a data set to every host, where ranks find it at $MUSTER_DATA/NAME, read-only.

    Each chunk leaves this machine once, and hosts pass it on; what a host has already is not sent again.
    """
    with explained(KEPT):
        wanted, limit = source_of(source, name, sha256), size("--most", most or MOST, least=1)
        if most and not wanted.url:
            raise UsageError(f"--most limits what a URL gives, and {source} is no URL; leave it out")
        inventory, content = of_file(hosts, include, exclude, python), None
        if wanted.here:
            with Progress(sys.stdout, f"reading {source}") as progress:
                content = read_here(wanted, progress.show)
        began = time.monotonic()
        with (
            Cluster(inventory.hosts, inventory.open_pipe) as cluster,
            Progress(sys.stdout, wanted.name) as progress,
        ):
            carrier = Push(cluster, wanted, progress.show, shard=shard, most=limit)
            pushed = carrier.carry(content)
        sys.stdout.write(harmless_lines(report.pushed_as_text(pushed, time.monotonic() - began)))
        if pushed.failed:
            raise Exit(code=UnfitError.exit_status)


@command(help={**HELP, "json": JSON})
def list(  # noqa: A001
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    json: bool = False,
    python: str = "",
) -> None:
    """Show the data sets of every host, and which were changed there."""
    with explained(), cluster_of(hosts, include, exclude, python) as cluster:
        listed = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS).require_all()
        sets = {host: answer.sets for host, answer in listed.items()}
        if json:
            rows = {host: [asdict(one) for one in found] for host, found in sets.items()}
            sys.stdout.write(dumps(rows, indent=2) + "\n")
        else:
            sys.stdout.write(harmless_lines(report.listed_as_text(sets)))


@command(words=("name",), help={**HELP, "name": NAME, "json": JSON})
def verify(  # noqa: PLR0917
    name: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    json: bool = False,
    python: str = "",
) -> None:
    """Read every byte of a data set on every host, and name the files that are damaged."""
    with explained(), _cluster("verify NAME", name, (hosts, include, exclude, python)) as cluster:
        hosts_here = len(cluster.channels)
        with Progress(sys.stderr, name, unit="hosts", least=2) as progress:
            counted = partial(progress.add, 1, hosts_here)
            words = {"name": name}
            asked = ask_every(cluster.channels, DATA_VERIFY, LONG_SECONDS, lambda host: words, counted)
        answers, errors = asked.results, {host: error.reason for host, error in asked.errors.items()}
        if json:
            rows = {host: {**asdict(answer), "error": ""} for host, answer in answers.items()}
            failed = {host: {"digest": "", "damaged": [], "error": error} for host, error in errors.items()}
            sys.stdout.write(dumps({**rows, **failed}, indent=2) + "\n")
        else:
            sys.stdout.write(harmless_lines(report.verified_as_text(name, answers, errors)))
        versions = {answer.digest for answer in answers.values()}
        if errors or len(versions) > 1 or any(answer.damaged for answer in answers.values()):
            raise Exit(code=UnfitError.exit_status)


@command(
    words=("name", "to"),
    help={**HELP, "name": NAME, "to": "the folder here that is made (default: the name of the data set)"},
)
def pull(  # noqa: PLR0917
    name: str = "",
    to: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    python: str = "",
) -> None:
    """Bring a data set here, from a host that has it, or its shards from all hosts."""
    with (
        explained(KEPT),
        _cluster("pull NAME [TO]", name, (hosts, include, exclude, python)) as cluster,
    ):
        listed = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS).require_all()
        held = {host: one for host, answer in listed.items() for one in answer.sets if one.name == name}
        with Progress(sys.stdout, name) as progress:
            brought = pulling.pull(cluster, name, held, Path(to or name), progress.show)
        sys.stdout.write(f"{to or name}: {brought / 1e6:.1f} MB\n")


@command(words=("name",), help={**HELP, "name": NAME})
def remove(
    name: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    python: str = "",
) -> None:
    """Remove a data set from every host where no job runs."""
    with explained(), _cluster("remove NAME", name, (hosts, include, exclude, python)) as cluster:
        listed = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS).require_all()
        places = {host: answer.place for host, answer in listed.items()}
        words = {"name": name}
        asked = ask_in_turn(cluster.channels, DATA_REMOVE, LONG_SECONDS, places, lambda host: words)
        if asked.results:
            freed = sum(answer.freed for answer in asked.results.values())
            sys.stdout.write(f"{fold_names(asked.results)}: {name} removed, {freed / 1e6:.1f} MB\n")
        asked.require_all()


def _cluster(usage: str, name: str, chosen: tuple[str, str, str, str]) -> Cluster:
    """The hosts that `cluster_of` chooses, for a data set; `UsageError` for what cannot be its name."""
    if not name:
        raise UsageError(f"which data set? muster data {usage}")
    try:
        require_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return cluster_of(*chosen)
