"""The hosts of a command: of a hosts file by SSH, or of an allocation of Slurm by its steps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from ..core.connect.opener import Access, access_beside, access_with
from ..core.connect.pipe import OpenPipe
from ..core.errors import MusterError, UnfitError, UsageError
from ..core.hosts import hostfile
from ..core.hosts.hostfile import Host
from ..core.hosts.slots import SlotRule, counted_slots
from ..core.plan.launcher import launcher_of
from ..core.plan.spec import DEFAULT_LAUNCHER, LauncherName, LaunchSpec
from ..core.text.text import count
from ..features.leases.drained import drained_line, load, usable
from .shared import HOSTS_FILE, THIS_ALLOCATION, HostOptions, SlurmOptions, print_note, python_here

if TYPE_CHECKING:  # most commands launch nothing
    from ..core.connect.cluster import Cluster
    from ..core.job.feature import Feature
    from ..features.slurm.programs import SiteFinding
    from .hosts_record import HostsRecord

T = TypeVar("T", bound=SlurmOptions)
OnDrained = Literal["keep", "leave out", "leave out unless named"]
"""What a command does with hosts that `muster hosts drain` has put aside. A launch leaves them out. A command
that measures takes one that --include names, so that a repair is proved before the host comes back."""
RANKS_WITHOUT_GPUS = 2
"""The number of ranks of this machine, if there is no hosts file and no GPU."""


@dataclass(frozen=True)
class Inventory:
    """Hosts, and how to connect to them."""

    hosts: tuple[Host, ...]
    open_pipe: OpenPipe
    access: Access | None = None
    """How they are reached by SSH; None for hosts of Slurm, which only the steps of an allocation reach."""
    allocation: str = ""
    """Slurm's number of the allocation that the hosts belong to."""
    features: Sequence[Feature] = ()
    """What the source of the hosts adds to a job."""
    launcher: LauncherName = DEFAULT_LAUNCHER
    """The launcher, if the user chose none."""

    @property
    def pythons(self) -> Mapping[str, str]:
        """The Python that setup chose for a host, by its name."""
        return self.access.pythons if self.access else {}

    def record(self, spec: LaunchSpec, *, detached: bool = False) -> HostsRecord | None:
        """What later commands need to reach the hosts of a job."""
        from .hosts_record import HostsRecord

        return HostsRecord(tuple(spec.hosts), self.access, detached) if self.access else None


def of_file(options: HostOptions, drained: OnDrained = "keep") -> Inventory:
    """The hosts of a hosts file. `drained`: what to do with drained hosts."""
    path = options.hosts_file
    listed = hostfile.select(hostfile.load(path), options.include, options.exclude)
    if drained != "keep":
        listed = _without_drained(
            listed, path, options.include if drained == "leave out unless named" else ""
        )
    if not options.hosts and path.name != str(path):
        print_note(f"note: the hosts of {path}")
    access = access_beside(path, options.python, python_here(options))
    if access.here != access.python and any(host.is_local for host in listed):
        print_note("note: only a launch uses python of muster.toml on localhost; others: --python PATH")
    return Inventory(listed, access.open, access)


def _without_drained(listed: tuple[Host, ...], path: Path, named: str) -> tuple[Host, ...]:
    """The hosts without those that are drained, unless their names are in `named`; each has a note."""
    entries = load(path)
    if not entries:
        return listed
    kept = hostfile.named(named, listed, "--include") if named else set[str]()
    usable_hosts, entries = usable(listed, tuple(entry for entry in entries if entry.host not in kept))
    lines = [drained_line(entry, time.time()) for entry in entries]
    if not usable_hosts:
        raise UsageError(
            "; ".join(lines) + f"; no host is left. Take one back: muster hosts undrain {entries[0].host}"
        )
    for line in lines:
        print_note(f"note: {line}")
    return usable_hosts


def _of_this_machine(options: HostOptions, chosen: str, rule: SlotRule | None) -> Inventory:
    """Only this machine, without a hosts file. `rule`: of its slots (default: one for each GPU, else two).

    The launcher is that of the user, else torchrun if mpirun does not work, else mpirun.
    """
    from ..core.connect.cluster import Cluster

    access = access_with(None, options.python, python_here(options))
    alone = (Host("localhost"),)
    with Cluster(alone, access.open) as cluster:
        facts = cluster.facts
    (machine,) = facts.values()
    hosts, errors = counted_slots(alone, facts, rule or machine.gpus or RANKS_WITHOUT_GPUS)
    if errors:
        raise UnfitError(errors.items())
    error = None if chosen else launcher_of(DEFAULT_LAUNCHER).unfit(machine)
    launcher: LauncherName = "torchrun" if error else DEFAULT_LAUNCHER
    ranks = count(hosts[0].slots, "rank") + (f", by torchrun ({error.text})" if error else "")
    print_note(
        f"note: no {HOSTS_FILE}: running on this machine with {ranks}; 'muster init' writes a hosts file"
    )
    return Inventory(hosts, access.open, access, launcher=launcher)


def hosts_or_this_machine(options: HostOptions) -> Inventory:
    """The hosts of a hosts file; without one, and if the user names no hosts, this machine."""
    if options.hosts or options.include or options.exclude or os.path.lexists(options.hosts_file):
        return of_file(options)
    access = access_with(None, options.python, python_here(options))
    return Inventory((Host("localhost"),), access.open, access)


def with_slots(inventory: Inventory, rule: SlotRule | None) -> tuple[Host, ...]:
    """The hosts with the slots that `--slots` gives them; without a rule, those of the hosts file.

    To count GPUs or cores it connects to every host; `UnfitError` names those that cannot be counted.
    """
    if not rule:
        return inventory.hosts
    facts = {}
    if not isinstance(rule, int):
        from ..core.connect.cluster import Cluster

        with Cluster(inventory.hosts, inventory.open_pipe) as cluster:
            facts = cluster.facts
    hosts, errors = counted_slots(inventory.hosts, facts, rule)
    if errors:
        raise UnfitError(errors.items())
    return hosts


def cluster_of(options: HostOptions, find: Callable[[HostOptions], Inventory] = of_file) -> Cluster:
    """The hosts, without their facts."""
    from ..core.connect.cluster import Cluster

    inventory = find(options)
    return Cluster(inventory.hosts, inventory.open_pipe, facts=False)


@contextlib.contextmanager
def reached_hosts(
    options: HostOptions, find: Callable[[HostOptions], Inventory] = of_file
) -> Iterator[tuple[Cluster, dict[str, MusterError]]]:
    """The hosts that can be reached, without their facts, and errors of the others; callers may add more.

    At the end `UnfitError` has these errors; at once if no host can be reached.
    """
    with contextlib.closing(cluster_of(options, find)) as cluster:
        errors = cluster.connect()
        if cluster.channels:
            yield cluster, errors
    if errors:
        raise UnfitError(errors.items())


@contextlib.contextmanager
def allocated(options: SlurmOptions, seconds: float | None) -> Iterator[Inventory]:
    """The hosts of an allocation: a new one from salloc, or that of this process."""
    from ..features.slurm import grant
    from ..features.slurm.allocation import steps
    from ..features.slurm.blame import AllocationEnd, blame_for_unfit
    from ..features.slurm.options import options_of

    with contextlib.ExitStack() as stack:
        if options.slurm == THIS_ALLOCATION:
            allocation = grant.own_allocation(os.environ)
        else:
            allocation = stack.enter_context(
                grant.request_allocation(options_of(options.slurm), os.environ, print_note, seconds)
            )
        hosts = hostfile.select(allocation.hosts, options.include, options.exclude)
        try:
            yield Inventory(
                hosts,
                steps(options.python, allocation),
                allocation=allocation.job,
                features=(AllocationEnd(allocation),),
            )
        except UnfitError as error:
            raise blame_for_unfit(error, allocation.job) from None


def with_source(options: T) -> T:
    """The options with the allocation of Slurm in which this command runs, unless they name other hosts.

    `UsageError` for a hosts file beside hosts of Slurm, because it would not be read.
    """
    if options.slurm == "none":
        return replace(options, slurm="")
    if options.slurm and options.hosts:
        raise UsageError(
            f"--hosts {options.hosts}: Slurm gives the hosts, so no hosts file is read; leave it out"
        )
    job, named = os.environ.get("SLURM_JOB_ID"), options.slurm or options.hosts
    if named or not job or os.path.lexists(options.hosts_file):
        return options
    print_note(f"note: the hosts are those of Slurm's allocation {job}; --slurm=none goes without it")
    return replace(options, slurm=THIS_ALLOCATION)


def site_findings(slurm: str) -> tuple[SiteFinding, ...]:
    """Findings about the Slurm site of this machine, for these options of salloc."""
    from ..features.slurm import options, programs

    words = [] if slurm == THIS_ALLOCATION else options.options_of(slurm)
    return programs.judge_site(programs.site(options.partition_of(words)))


def inventory_of(
    options: SlurmOptions, seconds: float | None = None, drained: OnDrained = "leave out unless named"
) -> contextlib.AbstractContextManager[Inventory]:
    """The hosts that Slurm gives for `--slurm`, within these seconds; without it, those of the hosts file."""
    return allocated(options, seconds) if options.slurm else contextlib.nullcontext(of_file(options, drained))


def inventory_or_this_machine(
    options: SlurmOptions,
    launcher: str,
    rule: SlotRule | None,
    seconds: float | None = None,
    drained: OnDrained = "leave out unless named",
) -> contextlib.AbstractContextManager[Inventory]:
    """The same; if the user names no hosts and no hosts file exists, this machine.

    `launcher`: the user's choice; `rule`: of the slots of this machine.
    """
    names_hosts = options.slurm or options.hosts or options.include or options.exclude
    if names_hosts or os.path.lexists(options.hosts_file):
        return inventory_of(options, seconds, drained)
    return contextlib.nullcontext(_of_this_machine(options, launcher, rule))
