"""Shows the plan of a launch, detaches it to its head or to Slurm, or runs it here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import interrupts, waits
from ..core.connect.cluster import Cluster
from ..core.connect.fanout import in_thread
from ..core.job.events import Event, JobEvent, Output, Said, Stage
from ..core.job.feature import Feature, Features, Start
from ..core.job.planning import make_plan
from ..core.plan.launch_plan import Placement
from ..core.plan.spec import LaunchSpec
from ..core.text.progress import Progress
from ..core.text.screen import Screen
from ..core.text.terminal import harmless, harmless_lines
from ..core.text.text import fitted
from ..core.timings import Timings
from ..core.wire.os_errors import explain
from ..features.all_features import changing, features_of
from ..features.packages.package_request import PackageOptions, Requirements
from .command import Exit
from .inventory import Inventory
from .launch_options import LaunchOptions
from .shared import cache_folder, print_note

if TYPE_CHECKING:
    from ..core.job.job import Job
    from ..core.job.result import LaunchResult
    from ..core.job.run_folder import RunFolder
    from ..features.packages.driver import Packages


@dataclass(frozen=True, kw_only=True)
class PreparedLaunch:
    """A request with its hosts, and the options for this machine."""

    spec: LaunchSpec
    options: LaunchOptions
    inventory: Inventory
    placement: Placement | None
    """Where its ranks run; None for a batch job of Slurm, whose hosts are not known yet."""
    screen: Screen
    timings: Timings
    progress: Progress
    slurm_options: Sequence[str] = ()
    """The options of sbatch for such a job."""
    wanted: Requirements | None = None
    """The packages for the ranks."""

    def handle(self) -> None:
        if self.placement is None:
            self._submit()
        elif self.options.dry_run:
            self._show_plan(self.placement)
        elif self.options.detach:
            self._detach(self.placement)
        else:
            self._run()

    def _submit(self) -> None:
        """Submit the batch job to Slurm, or print what would be submitted."""
        from ..features.slurm.batch import batch_of, submit

        batch, name = batch_of(self.spec, self.slurm_options, Path(self.options.runs)), self.spec.job
        if self.options.dry_run:
            sys.stdout.write(harmless_lines(str(batch)))
            return
        number = submit(self.spec, batch, os.environ)
        self.screen.say(f"job {name} is Slurm's job {number}; its folder is {batch.folder}")
        self.screen.say(_detached(name, "the first host"))

    def _packages(self) -> Packages | None:
        if self.wanted is None:
            return None
        from ..features.packages.bring import PackageDelivery

        launcher, dry = self.spec.launcher, self.options.dry_run
        return PackageDelivery(self.wanted, launcher, cache_folder(), self.screen.say, dry=dry)

    def _show_plan(self, placement: Placement) -> None:
        """Print the plan, and change nothing on the hosts."""
        open_pipe, network = self.inventory.open_pipe, self.spec.network
        features = Features((OnTerminal(self.screen, self.progress), *changing(self.spec, self._packages())))

        def emit(event: Event) -> None:
            features.tell(Feature.on_event, event)

        start = Start(self.spec, placement, emit, self.timings, is_dry_run=True)
        self.progress.stage(waits.with_hosts("connecting"))
        with Cluster(placement.connected, open_pipe, timings=self.timings, network=network) as cluster:
            title, _, lines = harmless_lines(str(make_plan(start, cluster, features))).partition("\n")
            sys.stdout.write(f"{fitted(title, sys.stdout)}\n{lines}")

    def _detach(self, placement: Placement) -> None:
        """Start its driver on its head, after this driver has delivered the packages."""
        from ..features.detach.driver import detach
        from .hosts_record import kept_if_taken

        self.progress.stage(waits.with_hosts("connecting"))
        spec, open_pipe, packages = self.spec, self.inventory.open_pipe, self._packages()
        if packages:
            with Cluster(placement.connected, open_pipe, network=spec.network) as cluster:
                self.progress.stage(waits.with_hosts("preparing the packages"))
                packages.provide(cluster)
            there = replace(spec.of(PackageOptions), environment=packages.key, described=packages.described)
            spec = spec.having(there)
        record = self.inventory.record(spec, detached=True)
        with (
            kept_if_taken(Path(self.options.runs), spec.job, record),
            Cluster(spec.hosts[:1], open_pipe) as cluster,
        ):
            self.screen.say(harmless(detach(spec, cluster, self.progress)))
        Progress.close_all()
        self.screen.say(_detached(spec.job, spec.hosts[0].name))

    def _run(self) -> None:
        """Run the job to its verdict, with run folder and screen."""
        own = (OnTerminal(self.screen, self.progress), _End())
        runs, packages = Path(self.options.runs), self._packages()
        job = job_here(self.spec, self.inventory, runs, own, packages=packages, timings=self.timings)
        try:
            result = job.run()
        finally:
            Progress.close_all()
            self.screen.close()
        self._conclude(job.folder, result)
        for note in job.features.closed(result):
            print_note(f"note: {note}")
        if result.exit_status:
            raise Exit(code=result.exit_status)

    def _conclude(self, folder: RunFolder, result: LaunchResult) -> None:
        """Print the verdict, and write the page."""
        from ..core.job.verdict import verdict
        from .page_after_job import PAGE, end_with_page

        self.screen.say(verdict(result, folder, "" if folder.unwritten else PAGE))
        if self.screen.error:
            text = harmless_lines(verdict(result, folder))
            sys.stderr.write(f"{text}\n        note: standard output: {explain(self.screen.error)}\n")
        if folder.unwritten:  # users often ignore standard output after status 0
            print_note(f"note: {folder.path}: the result is missing: {folder.unwritten}")
        end_with_page(folder.path)


def job_here(
    spec: LaunchSpec,
    inventory: Inventory,
    runs: Path,
    own: Sequence[Feature],
    *,
    packages: Packages | None = None,
    timings: Timings | None = None,
) -> Job:
    """A job of this process: with all features, after those in `own`, and the record of its hosts."""
    from ..core.job.job import Job
    from ..core.job.run_folder import RunFolder

    record = inventory.record(spec)
    folder = RunFolder(runs, spec.job, max_log=spec.max_log, hosts=record.content if record else b"")
    before = (*own, *inventory.features)
    return Job(spec, inventory.open_pipe, folder, features_of(spec, *before, packages=packages), timings)


def _detached(job: str, host: str) -> str:
    """The last line of a launch that does not wait for its job, with the next commands."""
    return f"detached; Muster's driver is on {host}\n        muster attach {job}\n        muster stop {job}"


class _End(Feature):
    """Loads the page's template while the ranks work; after the job, a signal does not change its status."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, JobEvent) and event.type == "rank.started" and event.rank == 0:
            in_thread(_load_template)
        if isinstance(event, JobEvent) and event.type == "job.ended" and event.exit_status is not None:
            interrupts.decide(event.exit_status)


def _load_template() -> None:
    from ..features.page.render import template

    template()  # an error comes again when the page is written


class OnTerminal(Feature):
    """Prints the output of the ranks and the lines of the driver; the line of progress shows the stages."""

    def __init__(self, screen: Screen, progress: Progress) -> None:
        self._screen, self._progress = screen, progress

    def on_event(self, event: Event) -> None:
        if isinstance(event, Output):
            self._screen.output(event.rank, event.host, event.stream, event.text)
        elif isinstance(event, Said):
            self._screen.say(event.text)
        elif isinstance(event, Stage):
            self._progress.stage(event.show)
