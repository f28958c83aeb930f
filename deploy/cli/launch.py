"""`muster launch`: run a program on every host."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace

from ..connect.ahead import ahead
from ..console.screen import Screen
from ..plan.placement import place
from ..timings import Timings
from . import launch_request as request
from . import options as parse
from .habits import HINTS
from .inventory import inventory_of, later, with_slots
from .launch_options import LaunchOptions
from .shared import HERE


@dataclass(frozen=True)
class Launch(LaunchOptions):
    """Run a program on every host, keep the logs of its ranks, print a verdict.

    muster launch train.py --epochs 3        words after the script are arguments of the program
    muster launch --np 4 -m package.module   and so are words after -m MODULE
    muster launch -- --epochs 3              Muster's own training program, with arguments
    """

    interrupted = "interrupted; the job is ended on every host"
    hints = HINTS

    def run(self) -> None:
        """Start the job, and exit with its status."""
        with contextlib.ExitStack() as stack:
            _launch(self, stack)


def _launch(options: LaunchOptions, stack: contextlib.ExitStack) -> None:
    """Read the request, connect to its hosts, and carry it out."""
    clock = Timings()
    clock.note("Python and the command line", 0.0)
    options = request.with_allocation(options)
    request.refuse(options)
    words = request.words_for_slurm(options)
    packages = request.packages_of(options)
    shown = sys.stderr if options.events == "-" else sys.stdout
    screen = Screen(shown, parse.ranks(options.rank), may_drop=True)
    spec = request.spec_of(options, screen.columns)
    # Mistakes are reported before the job waits for Slurm's hosts; other hosts are connected meanwhile.
    early = request.work_of(options, clock) if options.slurm not in {"", HERE} else None
    if words:
        inventory = later()
    else:
        inventory = stack.enter_context(inventory_of(options, options.start_timeout or None))
    hosts = parse.per_host(with_slots(inventory, options.slots), options.per_host)
    spec = replace(spec, allocation=inventory.allocation)
    placement = place(hosts, spec) if hosts else None
    used = placement.hosts if placement else ()
    parse.require_ranks(options.rank, sum(placement.counts.values()) if placement else options.np)
    open_pipe = ahead(hosts[:1] if options.detach else used, inventory.open_pipe, clock)
    work = early or request.work_of(options, clock)
    from . import carrying  # noqa: PLC0415  # loaded by now

    spec = replace(spec, program=work.program, record=work.recorded)
    fewest = options.min_hosts if words else parse.min_hosts(options.min_hosts, used)
    job = carrying.job_of(
        options,
        spec,
        hosts,
        tree=work.tree,
        library=work.library,
        pythons=inventory.pythons,
        min_hosts=fewest,
    )
    carrying.carry(
        job,
        options,
        screen,
        clock,
        inventory=replace(inventory, open_pipe=open_pipe),
        placement=placement,
        words=words or (),
        asked=packages,
        dry=options.dry_run,
    )
