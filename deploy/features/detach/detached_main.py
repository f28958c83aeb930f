"""The driver of a detached job, a process on the job's head: `features/detach/on_host.py` starts it.

It is the driver of `muster launch` with another transport: the agent of the head is its child process, and it
connects to the other hosts with OpenSSH's client. It needs only the standard library. Its run folder is in
the job's folder, so that everyone who can log in can ask about the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from ...core.connect.pipe import OpenPipe, Pipe
from ...core.connect.transports.openssh import OpenSshPipe
from ...core.connect.transports.process import LocalPipe
from ...core.errors import MusterError, UnfitError
from ...core.hosts.hostfile import Host
from ...core.job.driver_on_host import end_at_sigterm_alone, with_store
from ...core.job.events import Event, Waiting
from ...core.job.feature import AllFeatures, Attempt, Feature, Features
from ...core.job.job import Job
from ...core.job.result import TERMINATED, LaunchResult
from ...core.job.run_folder import RunFolder
from ...core.job.verdict import end_unstarted, why_unstarted
from ...core.plan.spec import LaunchSpec
from ...core.wire.paths import MusterPaths
from ...core.wire.users import home


def main(all_features: AllFeatures, folder_name: str) -> None:
    """Drive the job from stdin, in a process that outlives its parent and ends at SIGTERM alone."""
    spec = LaunchSpec.of_json(json.load(sys.stdin), all_features.options)
    if os.fork():
        os._exit(0)
    end_at_sigterm_alone()
    spec = with_store(spec, Path(MusterPaths.of_home(home()).store))
    drive(all_features, spec, Path(folder_name))


def drive(all_features: AllFeatures, spec: LaunchSpec, folder: Path) -> None:
    """Run the job to its verdict, in its folder.

    If the launching command is gone before the first report, the job is not started.
    """
    run = RunFolder(folder, "run", detached=True, max_log=spec.max_log, head=spec.hosts[0].name)
    report = _StartReport()
    features = all_features.of(spec, _Reporting(spec, run, report))
    try:
        result = Job(spec, opener_of(spec), run, features).run()
    except (MusterError, KeyboardInterrupt) as error:
        if report.is_sent and run.waits:
            _close(features, end_unstarted(run.path, *why_unstarted(error, run.path)))
            return
        if report.is_sent:  # keep the checkpoints and logs of a job that has started
            raise
        shutil.rmtree(folder, ignore_errors=True)
        report.refused(error)
    else:
        _close(features, result)


def _close(features: Features, result: LaunchResult) -> None:
    """Let the features act on the result of the job, with their notes in driver.log."""
    sys.stderr.writelines(f"{note}\n" for note in features.closed(result))


class _StartReport:
    """The only report to the driver that launched the job: that the job runs, or why it does not."""

    def __init__(self) -> None:
        self.is_sent = False

    def title(self, text: str) -> None:
        """Report that the job starts, or waits for its hosts."""
        if not self.is_sent:
            self._send(title=text)

    def refused(self, error: BaseException) -> None:
        """Report why the job does not start."""
        reasons = error.reasons if isinstance(error, UnfitError) else ()
        status = error.exit_status if isinstance(error, MusterError) else TERMINATED
        with contextlib.suppress(MusterError):
            self._send(error=str(error) or "stopped before it started", unfit=reasons, exit_status=status)

    def _send(self, **report: object) -> None:
        """`MusterError` if the driver that waits for this report has ended."""
        try:
            os.write(sys.stdout.fileno(), json.dumps(report).encode() + b"\n")
        except BrokenPipeError:
            raise MusterError("the driver that launched this job ended before the job started") from None
        self.is_sent = True
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # driver.log from now on


class _Reporting(Feature):
    """Reports the start of the job, and that it waits for its hosts."""

    def __init__(self, spec: LaunchSpec, run: RunFolder, report: _StartReport) -> None:
        self._spec, self._run, self._report = spec, run, report

    def on_event(self, event: Event) -> None:
        """The job may wait for leases."""
        if isinstance(event, Waiting):
            self._run.wait(self._spec, event.why)
            self._report.title(f"job {self._spec.job}: {event.why}")

    def begins(self, attempt: Attempt) -> None:
        """The job starts now."""
        self._report.title(attempt.plan.title)


def opener_of(spec: LaunchSpec) -> OpenPipe:
    """The way to the hosts from the first one, where this process runs."""
    head = spec.hosts[0].name

    def open_pipe(host: Host) -> Pipe:
        if host.name == head:
            return LocalPipe(None)  # the host's agent has started this driver with the job's Python
        return OpenSshPipe(host, spec.python or spec.pythons.get(host.name, "python3"), head=head)

    return open_pipe
