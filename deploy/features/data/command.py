"""`muster data push`, `list`, `verify` and `remove`: data sets of the hosts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ...cli.command import Exit
from ...cli.inventory import of_file, reached_hosts
from ...cli.shared import JSON, HostOptions, write_json
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every, one_of_each
from ...core.errors import MusterError, UnfitError, UsageError, lines_of
from ...core.plan.flags import flag
from ...core.text.fold import fold_names
from ...core.text.progress import MB, Progress
from ...core.text.terminal import harmless_lines
from ...core.text.text import table
from .data_push import LONG_SECONDS, DataTransfer, read_here
from .data_push import source as source_of
from .messages import DATA_LIST, DATA_REMOVE, DATA_VERIFY, DataSet, DataVerified
from .wire.manifest import require_name


def listed_as_text(hosts: Mapping[str, Sequence[DataSet]]) -> str:
    """A line for each set and host, by name, so that differences between hosts are side by side."""
    rows = [("name", "host", "files", "MB", "version", "")]
    names = sorted({held.name for sets in hosts.values() for held in sets})
    for name in names:
        for host, sets in hosts.items():
            named = [held for held in sets if held.name == name]
            rows += [_row(host, held) for held in named] or [(name, host, "-", "-", "-", "not here")]
    if len(rows) == 1:
        return "no data sets; to bring one: muster data push FOLDER\n"
    return "".join(f"{line}\n" for line in table(rows))


def _row(host: str, held: DataSet) -> tuple[str, str, str, str, str, str]:
    size = f"{held.bytes / 1e6:.1f}"
    return held.name, host, str(held.files), size, held.digest[:8] or "-", held.error


def verified_as_text(
    name: str, hosts: Mapping[str, DataVerified], errors: Mapping[str, str | MusterError]
) -> str:
    """The damaged files of each host, and a line if versions differ."""
    lines = lines_of(errors.items())
    for host, answer in hosts.items():
        if answer.damaged:
            lines += [f"{host}: {name} is damaged; a push repairs it"]
            lines += [f"    {line}" for line in answer.damaged]
        else:
            lines += [f"{host}: {name} {answer.digest[:8]} is as it was pushed"]
    if len({answer.digest for answer in hosts.values()}) > 1:
        lines += [f"the hosts have different versions of {name}: push it again"]
    return "".join(f"{line}\n" for line in lines)


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
            transfer = DataTransfer(cluster, source, progress.show, errors)
            pushed = transfer.push(content)
        sys.stdout.write(pushed.as_text(time.monotonic() - began))
        if not all(outcome.error for outcome in pushed.hosts.values()):
            sys.stdout.write(f"ranks find it at $MUSTER_DATA/{source.name}\n")
        if pushed.failed:
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class DataList(HostOptions):
    """Show the data sets of every host, and which were changed there."""

    json: bool = flag(False, JSON)

    def run(self) -> None:
        with reached_hosts(self) as (cluster, errors):
            answers = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS)
            errors.update(answers.errors)
            sets = {host: answer.sets for host, answer in answers.results.items()}
            if self.json:
                write_json({host: [asdict(data_set) for data_set in listed] for host, listed in sets.items()})
            else:
                sys.stdout.write(harmless_lines(listed_as_text(sets)))


@dataclass(frozen=True)
class DataVerify(HostOptions):
    """Read every byte of a data set on every host, and name damaged files."""

    name: str = flag("", "the name of the data set", takes="positional", required=WHICH)
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Have every host read it, and compare their contents."""
        fields = {"name": self.name}
        _require_name(self.name)
        with reached_hosts(self) as (cluster, unreached):
            outcomes = ask_every(cluster.channels, DATA_VERIFY, LONG_SECONDS, lambda host: fields)
            answers, errors = outcomes.results, unreached | outcomes.errors
            unreached.clear()  # the report has them
        if self.json:
            rows = {host: {**asdict(answer), "error": ""} for host, answer in answers.items()}
            failed = {
                host: {"digest": "", "damaged": [], "error": why.reason} for host, why in errors.items()
            }
            write_json({**rows, **failed})
        else:
            sys.stdout.write(harmless_lines(verified_as_text(self.name, answers, errors)))
        versions = {answer.digest for answer in answers.values()}
        if errors or len(versions) > 1 or any(answer.damaged for answer in answers.values()):
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class DataRemove(HostOptions):
    """Remove a data set from every host where no job runs."""

    name: str = flag("", "the name of the data set", takes="positional", required=WHICH)

    def run(self) -> None:
        """Remove it, and print the freed space."""
        _require_name(self.name)
        with reached_hosts(self) as (cluster, errors):
            listed = ask_every(cluster.channels, DATA_LIST, LONG_SECONDS)
            folders = {host: answer.place for host, answer in listed.results.items()}
            chosen, fields = one_of_each(cluster.channels, folders), {"name": self.name}
            removals = ask_every(chosen, DATA_REMOVE, LONG_SECONDS, lambda host: fields)
            errors.update({**listed.errors, **removals.errors})
            if removals.results:
                freed = sum(answer.freed for answer in removals.results.values())
                places = {folders[host] for host in removals.results}
                names = fold_names(host for host, place in folders.items() if place in places)
                sys.stdout.write(f"{names}: {self.name} removed, {freed / 1e6:.1f} MB\n")


def _require_name(name: str) -> None:
    """`UsageError` for an invalid name of a data set, before any host is asked."""
    try:
        require_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
