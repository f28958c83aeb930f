"""`muster launch`: run a program on every host."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from invoke import Context

from ..connect.ahead import ahead
from ..console.screen import Screen
from ..envs.wanted import wanted
from ..hosts.slots import slot_rule
from ..plan.launcher import LAUNCHERS
from ..plan.placement import used_hosts
from ..plan.source_tree import Tree, of_package, scan
from ..plan.spec import LaunchSpec, Program
from ..timings import Timings
from . import options as request
from .command import command
from .habits import HINTS, SPELLINGS
from .inventory import HERE, batch_words, inventory_of, later, require_one_source, slurm_of, with_slots
from .shared import HELP, NEW_RUN, SLOTS, explained, not_negative
from .shipped import TRAIN

START_SECONDS = 60
_HELP = {
    **HELP,
    "slurm": "take hosts from Slurm: salloc's options in one argument; without a value, this allocation",
    "slurm-login": "a login node of Slurm, for --slurm from another machine: the driver runs there",
    "launcher": "mpirun (default), torchrun, or srun on hosts of Slurm",
    "script": "a Python script of the working tree to run in every rank",
    "module": "a Python module to run in every rank (default: muster.train)",
    "args": 'arguments of the program, quoted as in a shell: --args="--epochs 3"',
    "backend": "auto (default), gloo, nccl, mpi or hccl; the program gets it as MUSTER_BACKEND",
    "np": "number of ranks (default: all slots)",
    "per-host": "number of ranks on each host (default: its slots)",
    "slots": SLOTS,
    "env": "NAME=VALUE for every rank, or NAME to pass on its value from this machine; may be repeated",
    "detach": "let the job go on when this command ends: its driver runs on the first host; with --slurm, "
    "as a batch job",
    "dry-run": "print every file and every command, and change nothing",
    "record": "record the collectives of each rank, so that muster why can explain a hang "
    "(default: for muster.train, and with --stall-timeout)",
    "no-record": "record nothing",
    "max-restarts": "how often to start again after a failure, on the hosts that are still fit (default: 0)",
    "min-hosts": "start again only if at least this many hosts are fit (default: all of them)",
    "start-timeout": "seconds until every rank must have started (default: 60), and for Slurm to give hosts "
    "(default: no limit; a batch job waits as long as Slurm does)",
    "stall-timeout": "end the job if no rank makes progress for this many seconds (default: 0, never)",
    "max-log": "limit for the logs of the run here: 500M, 20G (default: 8G; 0: none); hosts keep all logs",
    "sample-every": "seconds between two samples of each host, for muster top (default: 2; 0: none)",
    "network": "network of the ranks: a CIDR, or an interface of the first host (default: what all reach)",
    "rank": "show only these ranks here: 0,4-7; the logs have all",
    "requirements": "requirements.txt, pyproject.toml or uv.lock: every host gets the packages, once",
    "python-version": "the version of Python for these packages, 3.12 (default: the hosts' own Python)",
    "system-torch": "torch is the hosts' own, not a wheel",
    "torch-backend": "which wheels of torch: auto (default: by GPUs and driver), none, cpu, cu128, ...",
    "relock": "choose the versions of the packages anew",
    "image": "run the ranks in a container of this image on every host",
    "engine": "docker, podman or apptainer starts the container (default: what each host has)",
    "mount": "PATH, PATH:INSIDE or PATH:INSIDE:ro of the hosts, for the container; may be repeated",
    "runs": NEW_RUN,
    "events": "write what happens as JSON lines to a file, or to standard output with -",
    "metrics": "answer scrapes (OpenMetrics) at this port of this machine, or at ADDRESS:PORT, while it runs",
    "notify": "at the end, post how the job ended as JSON to a URL, or give it to a command on its input",
    "timings": "at the end, print how long each part of the start took",
}


class _Work(NamedTuple):
    """What goes to the hosts."""

    program: Program
    recorded: bool
    tree: Tree
    library: Tree


def _work(
    clock: Timings,
    place: Path,
    recorded: Callable[[Program], bool],
    *,
    slots: str,
    notify: str,
    metrics: str,
    **program: str,
) -> _Work:
    """Read the working tree, and load the modules that carry the launch out.

    `UsageError` for a program, or a value of these options, that no host can make right.
    """
    with clock.part("tree"):
        tree = scan(place)
        asked = request.program(tree, place, **program)
        work = _Work(asked, recorded(asked), tree, of_package(TRAIN))
    with clock.part("imports meanwhile"):
        # The logins that run meanwhile take longer than these imports.
        from ..jobs.notify import require_notify  # noqa: PLC0415
        from . import batch, carrying  # noqa: F401, PLC0415
        from .scrape import address_of  # noqa: PLC0415
    require_notify(notify)
    if metrics:
        address_of(metrics)
    if slots:
        slot_rule(slots)
    return work


@command(
    help=_HELP,
    iterable=["env", "mount"],
    words=("script",),
    rest="args",
    rest_after_words=True,
    ends_options=("-m",),
    spellings=SPELLINGS,
    hints=HINTS,
    alone={"--slurm": HERE},
)
def launch(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    hosts: str = "hosts.txt",
    slurm: str = "",
    slurm_login: str = "",
    launcher: str = "mpirun",
    script: str = "",
    module: str = "",
    args: str = "",
    backend: str = "auto",
    np: int = 0,
    per_host: int = 0,
    slots: str = "",
    env: Iterable[str] | None = None,
    include: str = "",
    exclude: str = "",
    detach: bool = False,
    dry_run: bool = False,
    record: bool = False,
    no_record: bool = False,
    max_restarts: int = 0,
    min_hosts: int = 0,
    start_timeout: int = 0,
    stall_timeout: int = 0,
    max_log: str = "8G",
    sample_every: int = 2,
    rank: str = "",
    network: str = "",
    runs: str = "runs",
    python: str = "",
    events: str = "",
    requirements: str = "",
    python_version: str = "",
    system_torch: bool = False,
    torch_backend: str = "auto",
    relock: bool = False,
    image: str = "",
    engine: str = "",
    mount: Iterable[str] | None = None,
    metrics: str = "",
    notify: str = "",
    timings: bool = False,
) -> None:
    """Run a program on every host, keep the logs of its ranks here, and print a verdict.

    muster launch train.py --epochs 3        words after the script are arguments of the program
    muster launch --np 4 -m package.module   and so are words after -m MODULE
    muster launch -- --epochs 3              Muster's own training program, with arguments
    """
    with explained(context, "interrupted; the job is ended on every host"), contextlib.ExitStack() as stack:
        clock = Timings()
        clock.note("Python and the command line", 0.0)
        slurm = slurm if slurm_login else slurm_of(launcher, slurm)
        require_one_source(hosts, slurm)
        alone = detach or bool(slurm_login)
        request.require_attached(detach=alone, events=events, metrics=metrics, timings=timings, rank=rank)
        not_negative(start_timeout=start_timeout, stall_timeout=stall_timeout, max_restarts=max_restarts)
        if (script or module) and hosts == "hosts.txt" and not slurm:
            request.require_hosts_before(script or f"-m {module}", args, Path.cwd())
        # Hosts of a batch job are known only when it starts.
        needing = {"include": include, "exclude": exclude, "per_host": per_host, "slots": slots}
        words = batch_words(slurm, slurm_login, detach=detach, **needing, requirements=requirements)
        shown = sys.stderr if events == "-" else sys.stdout
        asked = wanted(
            requirements,
            python=python_version,
            system_torch=system_torch,
            torch_backend=torch_backend,
            relock=relock,
        )
        container = request.container(image, engine, mount or (), requirements=requirements)
        here, screen = Path.cwd(), Screen(shown, request.ranks(rank), may_drop=True)
        spec = LaunchSpec(
            job=request.new_job(),
            program=Program(),
            launcher=request.one_of("--launcher", launcher, LAUNCHERS),
            np=np or None,
            backend=request.one_of("--backend", backend, request.BACKENDS),
            env=request.environment(env or (), os.environ),
            hidden=request.taken_from_here(env or ()),
            columns=None if alone else screen.columns,
            may_restart=max_restarts > 0,
            stdin=not (alone or max_restarts) and request.feeds(0),
            **container,
        )
        limits: dict[str, Any] = {
            "network": request.network(network),
            "max_log": request.size("--max-log", max_log),
        }
        if np:  # else the hosts say how many ranks there are
            request.require_ranks(rank, np)
        work_of = partial(
            _work,
            clock,
            here,
            partial(request.recorded, record=record, no_record=no_record, stalls=stall_timeout > 0),
            slots=slots,
            notify=notify,
            metrics=metrics,
            script=script,
            module=module,
            args=args,
        )
        # Mistakes are reported before the job waits for Slurm's hosts; other hosts are connected meanwhile.
        early = work_of() if slurm else None
        if words:
            inventory = later()
        else:
            given = inventory_of(hosts, slurm, include, exclude, python, seconds=start_timeout or None)
            inventory = stack.enter_context(given)
        listed = request.per_host(with_slots(inventory, slots), per_host)
        spec = replace(spec, allocation=inventory.allocation)
        used = used_hosts(listed, spec) if listed else ()
        request.require_ranks(rank, np or sum(host.slots for host in used))
        open_pipe = ahead(listed[:1] if detach else used, inventory.open_pipe, clock)
        work = early or work_of()
        from ..jobs.job import Job  # noqa: PLC0415  # loaded by now
        from . import batch, carrying  # noqa: PLC0415

        job = Job(
            spec=replace(spec, program=work.program, record=work.recorded),
            hosts=listed,
            tree=work.tree,
            library=work.library,
            start_timeout=float(start_timeout or START_SECONDS),
            slurm_timeout=float(start_timeout),
            stall_timeout=float(stall_timeout),
            max_restarts=max_restarts,
            min_hosts=max(0, min_hosts) if words else request.min_hosts(min_hosts, used),
            sample_every=float(max(0, sample_every)),
            notify=notify,
            python=python,
            pythons=inventory.pythons,
            **limits,
        )
        dry = dry_run or context.config.run.dry
        packages = carrying.packages(asked, spec.launcher, screen, dry=dry) if asked else None
        if words and slurm_login:
            batch.hand_to_login(job, words, slurm_login, screen, dry=dry)
        elif words:
            batch.hand_to_slurm(job, words, Path(runs), screen, dry=dry)
        elif dry:
            carrying.show(job, open_pipe, clock, packages)
        elif detach:
            carrying.hand_over(job, open_pipe, screen, packages)
        else:
            outward: dict[str, Any] = {"blame": inventory.blame, "events": events, "metrics": metrics}
            carrying.carry_out(
                job, open_pipe, Path(runs), screen, clock, packages=packages, tell=timings, **outward
            )
