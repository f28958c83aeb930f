"""The ways to handle a launch: show its plan, hand it over to its head or to Slurm, or run it here.

launch_request.py loads this module while launch.py connects to the hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import interrupts
from ..common.os_errors import explain
from ..connect.cluster import Cluster
from ..connect.pipe import OpenPipe
from ..console.progress import Progress
from ..console.screen import Screen
from ..console.terminal import harmless, harmless_lines
from ..envs.present import Packages
from ..envs.wanted import Wanted
from ..hosts.hostfile import Host
from ..jobs.detach import detach
from ..jobs.hosts_record import HostsRecord, keep, kept_if_taken
from ..jobs.job import Job
from ..jobs.notify import notify
from ..jobs.run_folder import RunFolder
from ..jobs.runner import Attempts, Blame, make_plan
from ..jobs.verdict import verdict
from ..launch.containers import Images
from ..launch.job_events import JobEvent
from ..plan.placement import Placement
from ..plan.source_tree import Tree
from ..plan.spec import LaunchSpec
from ..timings import Timings, table
from . import batch, listeners
from . import options as parse
from .command import Exit
from .ending import PAGE, end_with_page
from .inventory import Inventory
from .launch_options import LaunchOptions
from .scrape import scraped
from .shared import cache_folder

START_SECONDS = 60


def job_of(
    options: LaunchOptions,
    spec: LaunchSpec,
    hosts: tuple[Host, ...],
    *,
    tree: Tree,
    library: Tree,
    pythons: Mapping[str, str],
    min_hosts: int,
) -> Job:
    """The job of a launch: what goes to the hosts, and the rules for starting it again."""
    return Job(
        spec=spec,
        hosts=hosts,
        tree=tree,
        library=library,
        start_timeout=float(options.start_timeout or START_SECONDS),
        slurm_timeout=float(options.start_timeout),
        stall_timeout=float(options.stall_timeout),
        network=parse.network(options.network),
        max_restarts=options.max_restarts,
        min_hosts=min_hosts,
        max_log=parse.size("--max-log", options.max_log),
        sample_every=float(options.sample_every),
        notify=options.notify,
        python=options.python,
        pythons=pythons,
    )


def carry(
    job: Job,
    options: LaunchOptions,
    screen: Screen,
    clock: Timings,
    *,
    inventory: Inventory,
    placement: Placement | None,
    words: Sequence[str],
    asked: Wanted | None,
    dry: bool,
) -> None:
    """Handle a job in the way that its options ask for.

    `placement`: where its ranks run; None for a batch job of Slurm, whose hosts are not known yet.
    `words`: the options for Slurm of such a job. `asked`: the packages that the ranks shall have.
    """
    open_pipe, runs = inventory.open_pipe, Path(options.runs)
    record = inventory.record(job.hosts, detached=options.detach)
    brought = packages(asked, job.spec.launcher, screen, dry=dry) if asked else None
    if placement is None and options.slurm_login:
        batch.hand_to_login(job, words, options.slurm_login, runs, screen, dry=dry)
    elif placement is None:
        batch.hand_to_slurm(job, words, runs, screen, dry=dry)
    elif dry:
        show(job, open_pipe, clock, brought, placement)
    elif options.detach:
        with kept_if_taken(runs, job.spec.job, record):
            hand_over(job, open_pipe, screen, brought, placement)
    else:
        outward: dict[str, Any] = {
            "blame": inventory.blame,
            "events": options.events,
            "metrics": options.metrics,
            "record": record,
            "placement": placement,
        }
        carry_out(job, open_pipe, runs, screen, clock, packages=brought, tell=options.timings, **outward)


def packages(asked: Wanted, launcher: str, screen: Screen, *, dry: bool) -> Packages:
    """What brings the packages that a launch asks for."""
    from ..envs.bring import Bringing  # noqa: PLC0415  # most launches ask for none

    def progress(what: str, unit: str) -> Progress:
        return Progress(screen.stream, what, unit=unit)

    return Bringing(asked, launcher, cache_folder(), screen.say, progress, dry=dry)


def show(
    job: Job,
    open_pipe: OpenPipe,
    timings: Timings,
    packages: Packages | None,
    placement: Placement,
) -> None:
    """Print the plan, and change nothing on the hosts."""
    images = Images(job.spec, lambda text: None, pull=False) if job.spec.image else None
    with Cluster(placement.hosts, open_pipe, timings=timings, network=job.network) as cluster:
        plan = make_plan(job, job.spec, placement, cluster, timings, packages, images)
        sys.stdout.write(harmless_lines(str(plan)))


def hand_over(
    job: Job,
    open_pipe: OpenPipe,
    screen: Screen,
    packages: Packages | None,
    placement: Placement,
) -> None:
    """Hand the job over to its head, where its driver goes on. Packages are brought before, from here."""
    name = job.spec.job
    if packages:
        with Cluster(placement.hosts, open_pipe, network=job.network) as cluster:
            packages.furnish(cluster)
        job = replace(job, spec=replace(job.spec, environment=packages.key, packages=packages.described))
    with Cluster(job.hosts[:1], open_pipe) as cluster:
        screen.say(harmless(detach(job, cluster)))
    screen.say(f"detached; its driver is on {job.hosts[0].name}: muster attach {name}, muster stop {name}")


def _decide(event: JobEvent) -> None:
    """From the end of the job on, a signal changes its exit status no more."""
    if event.type == "job.ended" and event.exit_status is not None:
        interrupts.decide(event.exit_status)


def carry_out(
    job: Job,
    open_pipe: OpenPipe,
    runs: Path,
    screen: Screen,
    timings: Timings,
    *,
    packages: Packages | None = None,
    tell: bool = False,
    blame: Blame = lambda result: result,
    events: str = "",
    metrics: str = "",
    record: HostsRecord | None = None,
    placement: Placement | None = None,
) -> None:
    """Run the job to its verdict, with run folder and screen.

    `tell`: also print the timings of its start. `blame`: gives a result the cause that only the source of the
    hosts knows. `events`: where copies of the events go. `metrics`: where a scrape is answered. `record`: how
    later commands reach the hosts.
    """
    folder = RunFolder(runs, job.spec.job, max_log=job.max_log)
    try:
        with listeners.copies(events) as told, scraped(metrics) as scrape:
            observers = (folder, screen, scrape) if scrape else (folder, screen)
            tells = (_decide, *told, *((scrape.tell,) if scrape else ()))
            given: dict[str, Any] = {
                "timings": timings,
                "stdin": parse.STDIN,
                "packages": packages,
                "blame": blame,
                "placement": placement,
            }
            attempts = Attempts(
                job,
                open_pipe,
                folder,
                observers,
                lambda plan: keep(record, folder.path),
                listeners=tells,
                **given,
            )
            result = attempts.run()
    finally:
        screen.close()
    screen.say(verdict(result, folder, "" if folder.unwritten else PAGE))
    if screen.error:
        text = harmless_lines(verdict(result, folder))
        sys.stderr.write(f"{text}\n        note: standard output: {explain(screen.error)}\n")
    if folder.unwritten:  # standard output is often a log that is not looked into while the status is 0
        sys.stderr.write(harmless(f"note: {folder.path}: the result is missing: {folder.unwritten}") + "\n")
    if tell:
        screen.say(f"\n{table(timings.parts())}")
    end_with_page(folder.path)
    if why := notify(job.notify, result):
        sys.stderr.write(harmless(f"note: {why}") + "\n")
    if result.exit_status:
        raise Exit(code=result.exit_status)
