"""`muster launch`: run a program on every host."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from functools import partial

from ..core import waits
from ..core.connect.opener import connect_early
from ..core.plan.launcher import place_ranks
from ..core.plan.placement import Placement
from ..core.plan.spec import LaunchSpec
from ..core.text.progress import Progress
from ..core.text.screen import Screen
from ..core.timings import Timings
from . import launch_request as request
from . import options as parse
from .inventory import with_slots, without_hosts
from .launch_options import LaunchOptions
from .other_launchers import HINTS
from .shared import THIS_ALLOCATION, print_note


@dataclass(frozen=True)
class Launch(LaunchOptions):
    """Run a program on every host, keep the logs of its ranks, print a verdict.

    A rank is one process of the program. A host gets as many ranks as it has slots in the hosts file. The
    verdict says how the job ended, and why.

    muster launch train.py --epochs 3        the program gets --epochs 3
    muster launch --np 4 -m package.module   a module, with 4 ranks
    muster launch -- --epochs 3              Muster's own training program
    muster launch big --np 8                 the profile big of muster.toml
    """

    interrupted = "interrupted; the job is ended on every host"
    hints = HINTS

    def run(self) -> None:
        """Start the job, and exit with its status."""
        with contextlib.ExitStack() as stack:
            _launch(self, stack)


def _launch(options: LaunchOptions, stack: contextlib.ExitStack) -> None:
    """Read the request, connect to its hosts, and handle it."""
    clock = Timings()
    clock.note("Python and the command line", 0.0)
    if above := next((each.place for each in options.sources if each.place.startswith("/")), ""):
        print_note(f"note: options of {above.partition('.toml')[0]}.toml")
    request.refuse(options)
    slurm_options = request.options_for_slurm(options)
    wanted = request.packages_of(options)
    progress = stack.enter_context(Progress())
    screen = Screen(sys.stdout, options.rank, may_drop=True)
    spec = request.spec_of(options, screen.columns)
    # Report mistakes before the job waits for Slurm's hosts. Connections to other hosts start meanwhile.
    is_queued = options.slurm not in {"", THIS_ALLOCATION}
    if is_queued:
        spec = request.with_code(spec, options, clock, progress.stage)
    progress.stage(partial(waits.line, time.monotonic()))
    began = clock.now()
    inventory = without_hosts() if slurm_options else stack.enter_context(request.inventory_for(options))
    if options.slurm:
        clock.note("wait for Slurm", began)
    listed = with_slots(inventory, options.slots)
    named = listed if options.slots or options.per_host else parse.with_gpus(listed, options.gpus)
    hosts = parse.per_host(named, options.per_host)
    spec = replace(
        spec,
        launcher=options.launcher or inventory.launcher,
        hosts=hosts,
        allocation=inventory.allocation,
        pythons=inventory.pythons,
    )
    placement = _placement(options, spec)
    connected, used = (placement.connected, placement.hosts) if placement else ((), ())
    open_pipe = connect_early(hosts[:1] if options.detach else connected, inventory.open_pipe, clock)
    if not is_queued:
        spec = request.with_code(spec, options, clock, progress.stage)
    fewest = options.min_hosts if slurm_options else parse.min_hosts(options.min_hosts, used)
    if parse.has_data(parse.STDIN):
        print_note(parse.UNREAD_INPUT)
    from .launching import PreparedLaunch

    PreparedLaunch(
        spec=replace(spec, min_hosts=fewest),
        options=options,
        inventory=replace(inventory, open_pipe=open_pipe),
        placement=placement,
        screen=screen,
        timings=clock,
        progress=progress,
        slurm_options=slurm_options or (),
        wanted=wanted,
    ).handle()


def _placement(options: LaunchOptions, spec: LaunchSpec) -> Placement | None:
    """The placement of the ranks, or None without hosts; `UsageError` for options that do not fit to it."""
    placement = place_ranks(spec.hosts, spec) if spec.hosts else None
    if placement:
        parse.require_ranks(options.rank, placement.size)
        parse.require_spares(spec.spares, placement)
    return placement
