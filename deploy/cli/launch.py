"""`muster launch`: run a program on every host."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..core import waits
from ..core.connect.opener import Access, connect_early
from ..core.errors import UsageError
from ..core.plan.flags import Options, flags_of
from ..core.plan.launch_plan import Placement
from ..core.plan.launcher import place_ranks
from ..core.plan.source_tree import of_package, project_key, scan, with_files, with_kept
from ..core.plan.spec import DEFAULT_LAUNCHER, LaunchSpec, RequestFlags
from ..core.text.progress import Progress
from ..core.text.screen import Screen
from ..core.timings import Timings
from ..core.wire.users import home, own_name
from ..features.all_options import OPTIONS
from ..features.packages.package_request import PackageOptions, wanted
from ..features.slurm.options import AllocationOptions, options_of
from . import option_values as parse
from .command import Declaration
from .command_line import opposite
from .inventory import Inventory, inventory_or_this_machine, with_slots, with_source
from .launch_options import LaunchOptions
from .rank_program import note_of_default, notes_of, program_of
from .removed import answers
from .shared import HOSTS_FILE, THIS_ALLOCATION, TRAIN, print_note

_MEETING = "Muster sets the rendezvous; --network chooses the network"
_PLACES = "ranks follow the order of the hosts file; slots= is the number of ranks on a host"
_SLURM = 'options of Slurm go into one argument: --slurm "-N 2 -t 60"'
_LOGS = "each rank has its log in runs/JOB/logs, and --runs chooses the folder runs"
_COUNTED = "--slots gpus, --slots cores or --slots auto counts what each host has"
HINTS: Mapping[str, str] = {
    **answers("host", "some hosts of the hosts file: --include node1,node2"),
    **answers("nnodes num-nodes num-machines nodes", f"{_PLACES}; --include takes only some of them"),
    **answers("node-rank machine-rank map-by rank-by rankfile rf bynode byslot pernode", _PLACES),
    **answers("oversubscribe nooversubscribe", "slots= of the hosts file, or --slots, may exceed the cores"),
    **answers("master-addr master-port main-process-ip main-process-port local-addr", _MEETING),
    **answers("rdzv-backend rdzv-endpoint rdzv-id rdzv-conf", _MEETING),
    **answers(
        "mca gmca prtemca pmixmca tune am",
        "Muster chooses mpirun's options; a parameter of Open MPI: --env OMPI_MCA_name=value",
    ),
    **answers(
        "bind-to bind-to-core bind-to-none cpus-per-proc cpus-per-rank use-hwthread-cpus numa-binding",
        "ranks are not bound to cores; the program may bind itself: os.sched_setaffinity",
    ),
    **answers("allow-run-as-root", "leave it out: mpirun gets it where the login of the hosts is root"),
    **answers("prefix", "leave it out: mpirun is the one beside the Python of each host, or on its PATH"),
    **answers("wdir wd chdir", "ranks start in the copy of this folder: change the folder, then launch"),
    **answers(
        "tag-output timestamp-output stream-buffering -l", "each line has its rank and host; leave it out"
    ),
    **answers("output-filename log-dir redirects tee -r -t", _LOGS),
    **answers("local-ranks-filter", "--rank 0,4-7 shows only these ranks"),
    **answers("report-bindings display-map display-allocation display", "--dry-run shows the plan"),
    **answers("verbose -v debug-devel", "runs/JOB/logs has every line, result.json the times of the start"),
    **answers(
        "timeout",
        "--stall-timeout SECONDS ends a job without progress; for its time: timeout 3600 muster ...",
    ),
    **answers("monitor-interval", "leave it out: an agent reports the end of a rank at once"),
    **answers("standalone", "a hosts file with the line: localhost slots=2"),
    **answers("no-python", "leave it out: muster launch SCRIPT"),
    **answers("use-env", "leave it out: programs find their rank in LOCAL_RANK"),
    **answers("local-rank", "each rank has its own LOCAL_RANK in its environment"),
    **answers("start-method role logs-specs", "Muster chooses torchrun's options; leave it out"),
    **answers("genv genvall genvlist", "--env NAME=VALUE, or --env NAME for its value here"),
    **answers("-u", "leave it out: the output of ranks is unbuffered"),
    **answers("-O -W -X -B -E -I", "an option of Python is a variable here, such as --env PYTHONOPTIMIZE=1"),
    **answers("-f", "--hosts FILE is the hosts file"),
    **answers(
        "-p ssh-port", 'an SSH port: port= in the hosts file; a partition of Slurm: --slurm "-p NAME -N 2"'
    ),
    **answers("-i ssh-identity-file", "a key: IdentityFile in ~/.ssh/config, or muster setup makes one"),
    **answers("gloo use-gloo", "--backend gloo"),
    **answers(
        "mpi use-mpi", "--launcher mpirun starts the ranks (the default), --backend mpi is for messages"
    ),
    **answers(
        "max-np host-discovery-script reset-limit",
        "a job starts again on the hosts that are fit: --max-restarts 3 --min-hosts 2",
    ),
    **answers("multi-gpu", _COUNTED),
    **answers("np=gpu np=cpu np=auto", _COUNTED),
    **answers("config-file", "the options of a launch are flags; hosts are in the hosts file"),
    **answers("partition gres account qos constraint mem time nodelist", _SLURM),
    **answers("cpus-per-task gpus-per-node gpus-per-task -A -C -c -w", _SLURM),
}
"""The hints of `launch` for options that it does not have: long ones by name, short ones with a dash."""


T = TypeVar("T", bound=Options)
_INSTEAD = {
    "include": '--slurm "... -w node1,node2" names them',
    "exclude": '--slurm "... -x node3" leaves hosts out',
    "slots": '--slurm "... --ntasks-per-node 2" sets the number of ranks of each',
    "spares": "ask for more nodes with -N than --np needs, and launch inside of a batch script",
    "requirements": "launch without --detach, or inside of a batch script",
}
"""For a batch job, Slurm's options instead of those that need its hosts."""


def refuse(options: LaunchOptions) -> None:
    """`UsageError` for options that contradict each other."""
    values = ((each, getattr(options, each.field)) for each in flags_of(options))
    given = {each.field: value for each, value in values if value != each.default}
    for part in parts_of(options):
        part.check(given)
    for name in ("min_hosts", "spares"):
        if getattr(options, name) and not options.max_restarts:
            raise UsageError(f"--{name.replace('_', '-')} is for restarts; add --max-restarts N")
    if options.detach and options.rank:
        raise UsageError(
            "--rank ends with this command, and a detached job (--detach) continues; muster logs JOB --rank "
            "shows one rank of it"
        )
    if options.np:  # else the number of ranks follows from the hosts
        parse.require_ranks(options.rank, options.np)


def options_for_slurm(options: LaunchOptions) -> list[str] | None:
    """The options of sbatch for a batch job of Slurm; None for any other launch.

    `UsageError` for options that need hosts, which are known only when the job starts.
    """
    if not (options.slurm and options.detach):
        return None
    if options.slurm == THIS_ALLOCATION:
        raise UsageError(
            "--detach with --slurm submits a batch job, which needs new hosts; "
            'write: --slurm "-N 2 -t 60" --detach'
        )
    for name, instead in _INSTEAD.items():
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} needs hosts, and Slurm has not given any yet: {instead}"
            )
    return options_of(options.slurm, "sbatch")


def inventory_for(options: LaunchOptions) -> contextlib.AbstractContextManager[Inventory]:
    """The hosts of a launch; without a hosts file, this machine with the ranks that the options ask for."""
    rule = options.np or options.slots or options.gpus
    brings_mpi = options.requirements or options.image
    launcher = options.launcher or (DEFAULT_LAUNCHER if brings_mpi else "")
    return inventory_or_this_machine(options, launcher, rule, options.start_timeout or None, "leave out")


def spec_of(options: LaunchOptions, columns: int | None) -> LaunchSpec:
    """The request without its code and hosts. `columns`: of the terminal that shows the ranks."""
    parts = parts_of(options)
    env = parse.environment(options.env, os.environ)
    return LaunchSpec(
        job=options.job or parse.new_job(),
        user=own_name(),
        command=("muster", "launch", *Declaration(LaunchOptions).arguments_of(options)),
        sources=_sources(options),
        launcher=options.launcher or DEFAULT_LAUNCHER,
        python=options.python,
        env=(*env, *(variable for part in parts for variable in part.variables)),
        hidden=_hidden(options),
        columns=None if options.detach else columns,
        may_restart=options.max_restarts > 0,
        **{each.field: getattr(options, each.field) for each in flags_of(RequestFlags)},
    ).having(*parts)


def parts_of(options: LaunchOptions) -> list[Options]:
    """The options of each feature."""
    return [part_of(options, kind) for kind in OPTIONS]


def part_of(options: LaunchOptions, kind: type[T]) -> T:
    """The options of a feature."""
    return kind(**{each.name: getattr(options, each.name) for each in fields(kind)})


def _hidden(options: LaunchOptions) -> tuple[str, ...]:
    """The names of variables and flags whose values are secret."""
    secret = (each.name for each in flags_of(options) if each.secret)
    return (*parse.taken_from_here(options.env), *secret)


def _sources(options: LaunchOptions) -> tuple[str, ...]:
    """A line for each option with its place, without secrets; none if all are of the command line."""
    if not options.sources:
        return ()
    from ..core.job.attempt_record import shown_command

    hidden, lines = _hidden(options), []
    for name, value, place in options.sources:
        tokens = [name] if value is True else [opposite(name)] if value is False else [name, str(value)]
        lines.append(f"{shown_command(tokens, hidden)}: {place}")
    return tuple(lines)


def _above(folder: Path, options: LaunchOptions) -> Path | None:
    """The top of a tree without git: the folder of the hosts file that was found above this folder."""
    found = options.hosts_file
    if options.hosts or found.name != HOSTS_FILE or not found.is_file():
        return None
    top = found.parent.resolve()
    is_project = folder.resolve().is_relative_to(top) and top not in {Path(home()).resolve(), Path("/")}
    return top if is_project else None


def with_code(spec: LaunchSpec, options: LaunchOptions, clock: Timings, progress: Progress) -> LaunchSpec:
    """Add the program and the tree, and import the modules of a launch, during the slower logins.

    `UsageError` for a program that is wrong on any host.
    """
    folder = Path.cwd()
    progress.stage(f"reading the files of {folder}")
    with clock.part("tree"):
        tree = scan(folder, _above(folder, options))
        program = program_of(tree, folder, script=options.script, module=options.module, args=options.args)
        unnamed = () if options.script or options.module or options.args else note_of_default(tree)
        for note in (*unnamed, *notes_of(program, tree, options.args)):
            print_note(note)
        library = of_package(TRAIN)
        if options.call:
            library = with_files(library, Path(options.call))
            from ..features.returned_values.driver import PYTHON

            version = Path(options.call, PYTHON)
            program = replace(program, python=version.read_text() if version.exists() else "")
        spec = replace(spec, program=program, tree=tree, library=library)
        if options.keep:
            tree, keep = with_kept(tree, options.keep)
            spec = replace(spec, tree=tree, keep=keep, project=project_key(tree.root))
    with clock.part("imports meanwhile"):
        from . import prepared_launch as launching  # noqa: F401
    return spec


class Launch(LaunchOptions):
    """Run a program on every host, keep the logs of its ranks, print a verdict.

    A rank is one process of the program. A host gets as many ranks as it has slots in the hosts file. The
    verdict says how the job ended, and why.

    muster launch train.py --epochs 3        the program gets --epochs 3
    muster launch --np 4 -m package.module   a module, with 4 ranks
    muster launch -- --epochs 3              Muster's own training program
    muster launch --profile big              the profile big of muster.toml
    """

    interrupted = "interrupted; the job is ended on every host"
    hints = HINTS

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            _launch(self, stack)


def _launch(options: LaunchOptions, stack: contextlib.ExitStack) -> None:
    """Read the request, connect to its hosts, and handle it."""
    clock = Timings()
    clock.note("Python and the command line", 0.0)
    if above := next((each.place for each in options.sources if each.place.startswith("/")), ""):
        print_note(f"note: options of {above.partition('.toml')[0]}.toml")
    refuse(options := with_source(options))
    slurm_options = options_for_slurm(options)
    packages = wanted(part_of(options, PackageOptions))
    progress = stack.enter_context(Progress())
    screen = Screen(sys.stdout, options.rank, may_drop=True)
    spec = spec_of(options, screen.columns)
    # Report mistakes before the job waits for Slurm's hosts. Connections to other hosts start meanwhile.
    is_queued = options.slurm not in {"", THIS_ALLOCATION}
    if is_queued:
        spec = with_code(spec, options, clock, progress)
    progress.stage(partial(waits.line, time.monotonic()))
    began = clock.now()
    inventory = Inventory((), Access().open) if slurm_options else stack.enter_context(inventory_for(options))
    if options.slurm:
        clock.note("waiting for Slurm", began)
    listed = with_slots(inventory, options.slots)
    hosts = listed if options.slots else parse.with_gpus(listed, options.gpus)
    spec = replace(
        spec,
        launcher=options.launcher or inventory.launcher,
        hosts=hosts,
        pythons=inventory.pythons,
    ).having(AllocationOptions(inventory.allocation))
    placement = _placement(options, spec)
    connected, used = (placement.connected, placement.hosts) if placement else ((), ())
    open_pipe = connect_early(hosts[:1] if options.detach else connected, inventory.open_pipe, clock)
    if not is_queued:
        spec = with_code(spec, options, clock, progress)
    fewest = options.min_hosts if slurm_options else parse.min_hosts(options.min_hosts, used)
    if parse.has_data(parse.STDIN):
        print_note(parse.UNREAD_INPUT)
    from .prepared_launch import PreparedLaunch

    PreparedLaunch(
        spec=replace(spec, min_hosts=fewest),
        options=options,
        inventory=replace(inventory, open_pipe=open_pipe),
        placement=placement,
        screen=screen,
        timings=clock,
        progress=progress,
        slurm_options=slurm_options or (),
        wanted=packages,
    ).handle()


def _placement(options: LaunchOptions, spec: LaunchSpec) -> Placement | None:
    """The placement of the ranks, or None without hosts; `UsageError` for options that do not fit to it."""
    placement = place_ranks(spec.hosts, spec) if spec.hosts else None
    if placement:
        parse.require_ranks(options.rank, placement.size)
        parse.require_spares(spec.spares, placement)
    return placement
