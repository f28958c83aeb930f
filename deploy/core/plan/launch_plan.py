"""A launch as a value: where its ranks run, every file to write and every command to run.

`print(plan)` is the dry run and the golden file of the tests.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from ..errors import HostError
from ..hosts.host_facts import Facts
from ..hosts.hostfile import Host
from ..hosts.rendezvous import Rendezvous
from ..text.text import count, size
from ..wire.paths import JobPaths
from .source_tree import Tree
from .spec import LaunchSpec, is_secret

MOST_NAMES = 5  # more names would hide the remedy in a note


@dataclass(frozen=True)
class PlacedRank:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class Placement:
    """The hosts with ranks, the ranks of each, and spares. Muster does not connect to other hosts."""

    hosts: tuple[Host, ...]
    ranks: Mapping[str, tuple[PlacedRank, ...]]
    """By the name of the host, in the order of the hosts."""
    spares: tuple[Host, ...] = ()
    """The hosts without ranks that are made ready for the next attempt."""

    @property
    def connected(self) -> tuple[Host, ...]:
        """The hosts with ranks, then the spares."""
        return self.hosts + self.spares

    @property
    def size(self) -> int:
        return sum(self.counts.values())

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return {name: len(ranks) for name, ranks in self.ranks.items()}


@dataclass(frozen=True)
class Layout:
    """One attempt on its hosts, for the launcher. The first host is the head."""

    spec: LaunchSpec
    placement: Placement
    facts: Mapping[str, Facts]
    rendezvous: Rendezvous

    @property
    def ranks(self) -> Mapping[str, int]:
        """The number of ranks on each host, in the order of the hosts."""
        return self.placement.counts

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The position of each host in their order."""
        return {name: index for index, name in enumerate(self.ranks)}

    @cached_property
    def is_even(self) -> bool:
        """Whether every host has the same number of ranks."""
        return len({*self.ranks.values()}) == 1

    @cached_property
    def has_interfaces(self) -> bool:
        """Whether the interface of every host towards the head is known."""
        return all(self.rendezvous.interfaces.values())

    @property
    def head(self) -> str:
        return self.placement.hosts[0].name

    @property
    def hostfile(self) -> str:
        """Path of mpirun's hostfile on the head."""
        return JobPaths.of(self.facts[self.head].home, self.spec.job).hostfile

    def rank_command(self, *, mpi: bool) -> tuple[str, ...]:
        """The command of each rank: the argv of `muster-rank` and its program. `mpi`: as ranks of MPI."""
        abort = mpi and all(facts.mpi4py for facts in self.facts.values())
        return ("muster-rank", *self.spec.program.argv(abort_with_mpi=abort))


class Launcher(ABC):
    """A program that starts the ranks of a job."""

    uses_mpi: bool
    """Whether the ranks run as an MPI job."""

    @abstractmethod
    def title(self, head: Facts) -> str:
        """The name and version of the launcher on the head."""

    @abstractmethod
    def unfit(self, facts: Facts) -> HostError | None:
        """The reason why a host cannot be used with this launcher; None if it can."""

    @abstractmethod
    def command(self, host: str, layout: Layout) -> tuple[str, ...] | None:
        """The argv to run on a host; None where the head starts the ranks."""

    @abstractmethod
    def environment(self, host: str, layout: Layout) -> dict[str, str]:
        """Variables for ranks and launcher on a host, besides those that every job has."""

    def differences(self, facts: Mapping[str, Facts]) -> list[tuple[str, str]]:
        """Hosts that cannot be used together, each with its reason."""
        return []


@dataclass(frozen=True)
class RemoteFile:
    """A file that the launch writes to a host."""

    path: str
    mode: int
    text: str = field(repr=False)


class UnshownFile(RemoteFile):
    """A file whose text no plan shows."""


@dataclass(frozen=True)
class Contribution:
    """What a feature adds to an attempt on a host."""

    facts: Facts | None = None
    """What its ranks find there, if that is not what the host has."""
    gpus: tuple[int, ...] = ()
    """The numbers of the GPUs of its ranks, in the order of their local ranks."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its ranks. Those of the plan and of the user override them."""
    path: tuple[str, ...] = ()
    """Folders on PATH, before that of mpirun."""
    files: tuple[RemoteFile, ...] = ()
    """Files in the job's folder. Each replaces one of the plan with the same path."""
    in_rank: Mapping[str, str] = field(default_factory=dict)
    """Programs for the folder in_rank/ of its ranks, each text by its name."""
    at_start: tuple[str, ...] = ()
    """The modules of these programs that each rank imports at its start, to call `begin` of each."""
    own_files: bool = False
    """Whether its ranks see other files than its agent, which then checks no links out of the code."""
    about: tuple[str, ...] = ()
    """Lines for the plan, which shows equal lines of several hosts once."""
    about_host: tuple[str, ...] = ()
    """Lines for the plan of the host."""
    launcher_runs: str = ""
    """Where its launcher runs, if not on the host itself: `of the container`, for the plan."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Fields of launch.json."""
    if_module_is_missing: str = ""
    """The advice for a rank that lacks the module {name}."""

    def __add__(self, more: Contribution) -> Contribution:
        pairs = {each.name: (getattr(self, each.name), getattr(more, each.name)) for each in fields(self)}
        return Contribution(**{name: _joined(*pair) for name, pair in pairs.items()})


def _joined(first: Any, second: Any) -> Any:
    """All items of both, or the second value if there is one."""
    if isinstance(first, tuple):
        return (*first, *second)
    return {**first, **second} if isinstance(first, Mapping) else second or first


@dataclass(frozen=True)
class HostPlan:
    """Everything that happens on a host. Without a `command`, its ranks are started from the head."""

    host: Host
    ranks: tuple[PlacedRank, ...]
    folder: str
    cwd: str
    path: tuple[str, ...]
    """The first folders on PATH of the started processes: the job's tools, then the folder of mpirun."""
    env: Mapping[str, str]
    files: tuple[RemoteFile, ...]
    command: tuple[str, ...] | None
    kept: tuple[tuple[str, str], ...] = ()
    """The links in the job's code to folders that outlive the job, each with its target."""
    own_files: bool = False
    """Whether its ranks see other files than its agent."""


@dataclass(frozen=True)
class LaunchPlan:
    """The whole launch. The first host is the head."""

    spec: LaunchSpec
    hosts: tuple[HostPlan, ...]
    title: str
    busy: tuple[str, ...] = ()
    """A note for each other job on its hosts."""
    spares: tuple[str, ...] = ()
    """The hosts without ranks that are ready for the next attempt."""
    added: Mapping[str, Contribution] = field(default_factory=dict)
    """What its features have added, by host; also for spare hosts."""

    @cached_property
    def ranks(self) -> tuple[PlacedRank, ...]:
        return tuple(rank for host in self.hosts for rank in host.ranks)

    @property
    def gpus(self) -> dict[str, tuple[int, ...]]:
        """The numbers of the GPUs of each host whose GPUs are chosen."""
        return {host: added.gpus for host, added in self.added.items() if added.gpus}

    def gpu_of(self, placed: PlacedRank) -> int:
        """The number of the GPU of a rank that takes the one of its local rank, as most programs do."""
        gpus = self.gpus.get(placed.host, ())
        return gpus[placed.local_rank] if placed.local_rank < len(gpus) else placed.local_rank

    @property
    def notes(self) -> tuple[str, ...]:
        tree = self.spec.tree
        notes = [*self.busy, *([_about_absent(tree.absent)] if tree.absent else [])]
        notes += [about_vanished(tree.vanished)] if tree.vanished else []
        return tuple(notes)

    def __str__(self) -> str:
        described = (
            _describe_host(self.spec, host, self.added.get(host.host.name, Contribution()))
            for host in self.hosts
        )
        notes = (f"note: {note}" for note in self.notes)
        about = dict.fromkeys(line for added in self.added.values() for line in added.about)
        options = ["options:", *(f"  {source}" for source in self.spec.sources)] if self.spec.sources else []
        spares = [f"spare hosts: {', '.join(self.spares)}"] if self.spares else []
        head = [self.title, *options, _describe_tree(self.spec.tree), *about, *spares]
        return "\n".join([*head, *notes, *described]) + "\n"


def _describe_tree(tree: Tree) -> str:
    links = ", ".join(f"{path} -> {target}" for path, target in tree.links_out())
    out = f"; every host must have: {links}" if links else ""
    return f"code: {count(len(tree.files), 'file')}, {size(tree.size)} of {tree.root}{out}"


def _about_absent(submodules: Sequence[str]) -> str:
    """The note about submodules that are not checked out."""
    listed = _first(submodules)
    are, them = ("submodule {} is", "its") if len(submodules) == 1 else ("submodules {} are", "their")
    return f"{are.format(listed)} not checked out, so no host gets {them} files; git submodule update --init"


def about_vanished(files: Sequence[str]) -> str:
    """The note about files that were removed here during the launch."""
    was, it = ("was", "it") if len(files) == 1 else ("were", "them")
    return f"{_first(files)} {was} removed here during the launch, so the ranks run without {it}"


def about_changed(files: Sequence[str]) -> str:
    """The note about files that changed here while they were sent."""
    it = "it" if len(files) == 1 else "them"
    return f"{_first(files)} changed here while the files were sent, so hosts may have two versions of {it}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def _describe_host(spec: LaunchSpec, plan: HostPlan, added: Contribution) -> str:
    ranks = (
        f"ranks {plan.ranks[0].rank}-{plan.ranks[-1].rank}"
        if len(plan.ranks) > 1
        else f"rank {plan.ranks[0].rank}"
    )
    slots = " (one slot, because it has no slots= in the hosts file)" if plan.host.slots_by_default else ""
    lines = ["", f"{plan.host.name}: {ranks}{slots}", f"  folder {plan.folder}"]
    code = JobPaths(plan.folder).code
    lines += [f"  keep {PurePosixPath(link).relative_to(code)} in {folder}" for link, folder in plan.kept]
    for file in plan.files:
        lines.append(f"  write {PurePosixPath(file.path).relative_to(plan.folder)} (mode {file.mode:04o})")
        if not (file.path.endswith(".py") or isinstance(file, UnshownFile)):
            lines += [f"    | {line}" for line in file.text.splitlines()]
    lines += [
        f"  env {name}={'***' if is_secret(name, spec.hidden) else shlex.quote(value)}"
        for name, value in sorted(plan.env.items())
    ]
    lines += [f"  {line}" for line in added.about_host]
    if plan.command:
        where = " ".join(filter(None, (plan.cwd, added.launcher_runs)))
        lines += [f"  run in {where}", f"    {shlex.join(plan.command)}"]
    return "\n".join(lines)
