"""`muster data push`, `list`, `verify`, `pull` and `remove`: data sets of the hosts."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ...cli.command import Exit
from ...cli.inventory import cluster_of, of_file
from ...cli.shared import JSON, HostOptions, write_json
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every, ask_in_turn
from ...core.errors import UnfitError, UsageError
from ...core.plan.flags import flag
from ...core.text.fold import fold_names
from ...core.text.progress import MB, Progress
from ...core.text.terminal import harmless_lines
from . import pull as pulling
from . import report
from .messages import DATA_LIST, DATA_REMOVE, DATA_VERIFY
from .push import LONG_SECONDS, DataTransfer, read_here
from .source import source as source_of
from .wire.manifest import require_name

KEPT = "interrupted; partial data is kept: run the command again to resume"
WHICH = "which data set?"


@dataclass(frozen=True)
class DataPush(HostOptions):
    """Bring a data set to every host, where ranks find it at $MUSTER_DATA/NAME.

    The ranks may only read it. Each chunk leaves this machine once, and hosts pass it on; what a host has
    already is not sent again.
    """

    interrupted = KEPT

    source: str = flag(
        "",
        "a folder or file here; or head:/PATH, a folder of the first host",
        takes="positional",
        required="what to push?",
    )
    name: str = flag("", "the name of the data set (default: the name of the folder)", takes="positional")
    shard: bool = flag(False, "give each host only a part: every n-th file")

    def run(self) -> None:
        """Push it, and report what each host got."""
        source = source_of(self.source, self.name)
        inventory, content = of_file(self), None
        if source.here:
            with Progress(f"reading {self.source}", unit=MB) as progress:
                content = read_here(source, progress.show)
        began = time.monotonic()
        with (
            contextlib.closing(Cluster(inventory.hosts, inventory.open_pipe)) as cluster,
            Progress(source.name, unit=MB) as progress,
        ):
            errors = cluster.connect()
            transfer = DataTransfer(cluster, source, progress.show, shard=self.shard, unreached=errors)
            pushed = transfer.push(content)
        sys.stdout.write(harmless_lines(report.pushed_as_text(pushed, time.monotonic() - began)))
        if pushed.failed:
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class DataList(HostOptions):
    """Show the data sets of every host, and which were changed there."""

    json: bool = flag(False, JSON)

    def run(self) -> None:
        with cluster_of(self) as cluster:
            answers = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS).require_all()
        sets = {host: answer.sets for host, answer in answers.items()}
        if self.json:
            write_json({host: [asdict(data_set) for data_set in listed] for host, listed in sets.items()})
        else:
            sys.stdout.write(harmless_lines(report.listed_as_text(sets)))


@dataclass(frozen=True)
class DataVerify(HostOptions):
    """Read every byte of a data set on every host, and name damaged files."""

    name: str = flag("", "the name of the data set", takes="positional", required=WHICH)
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Have every host read it, and compare their contents."""
        fields = {"name": self.name}
        with _cluster(self, self.name) as cluster:
            outcomes = ask_every(cluster.channels, DATA_VERIFY, LONG_SECONDS, lambda host: fields)
        answers, errors = outcomes.results, {host: error.reason for host, error in outcomes.errors.items()}
        if self.json:
            rows = {host: {**asdict(answer), "error": ""} for host, answer in answers.items()}
            failed = {host: {"digest": "", "damaged": [], "error": error} for host, error in errors.items()}
            write_json({**rows, **failed})
        else:
            sys.stdout.write(harmless_lines(report.verified_as_text(self.name, answers, errors)))
        versions = {answer.digest for answer in answers.values()}
        if errors or len(versions) > 1 or any(answer.damaged for answer in answers.values()):
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class DataPull(HostOptions):
    """Bring a data set here, from a host that has it, or its shards from all."""

    interrupted = KEPT

    name: str = flag("", "the name of the data set", takes="positional", required=WHICH)
    to: str = flag("", "the folder to make here (default: the name of the data set)", takes="positional")

    def run(self) -> None:
        """Find the hosts that have it, and copy it."""
        name = self.name
        with _cluster(self, name) as cluster:
            listed = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS).require_all()
            holders = {
                host: held for host, answer in listed.items() for held in answer.sets if held.name == name
            }
            with Progress(name, unit=MB) as progress:
                brought = pulling.pull(cluster, name, holders, Path(self.to or name), progress.show)
        sys.stdout.write(f"{self.to or name}: {brought / 1e6:.1f} MB\n")


@dataclass(frozen=True)
class DataRemove(HostOptions):
    """Remove a data set from every host where no job runs."""

    name: str = flag("", "the name of the data set", takes="positional", required=WHICH)

    def run(self) -> None:
        """Remove it, and print the freed space."""
        with _cluster(self, self.name) as cluster:
            listed = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS).require_all()
            folders = {host: answer.place for host, answer in listed.items()}
            fields = {"name": self.name}
            removals = ask_in_turn(cluster.channels, DATA_REMOVE, LONG_SECONDS, folders, lambda host: fields)
            if removals.results:
                freed = sum(answer.freed for answer in removals.results.values())
                sys.stdout.write(
                    f"{fold_names(removals.results)}: {self.name} removed, {freed / 1e6:.1f} MB\n"
                )
            removals.require_all()


def _cluster(options: HostOptions, name: str) -> Cluster:
    """The hosts of a command for a data set; `UsageError` for an invalid name."""
    try:
        require_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return cluster_of(options)
