"""The driver of a detached job, a process on the job's head: `deploy/agent/job/detach.py` starts it.

It is the same driver as in `fab launch`, but reaches the hosts in another way: the agent of the head is its
child process, and it connects to the other hosts with OpenSSH's client. It needs only the standard library.
Its run folder is in the job's folder, so that everyone who can log in can ask about the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from .. import interrupts
from ..common.paths import MusterPaths
from ..common.users import home
from ..connect.pipe import OpenPipe, Pipe
from ..connect.transports.local import LocalPipe
from ..connect.transports.openssh import OpenSshPipe
from ..envs.present import Present
from ..errors import MusterError, UnfitError
from ..hosts.hostfile import Host
from ..launch.result import TERMINATED
from ..plan.launch_plan import LaunchPlan
from .job import Job
from .notify import notify
from .run_folder import RunFolder
from .runner import Attempts, Blame
from .stored import stored
from .unstarted import end_unstarted, why_unstarted

END_SECONDS = 20.0
"""The bound of its end after a second signal: that a job is ended and recorded on all hosts."""


class Hosts(NamedTuple):
    """The hosts of a job, and the way to them."""

    job: Job
    open_pipe: OpenPipe
    blame: Blame = lambda result: result


Take = Callable[[Job, RunFolder, Callable[[str], None]], AbstractContextManager[Hosts]]
"""Gives the hosts of a job. The function that it gets tells whoever hands the job over that it waits."""


def main(folder_name: str, take: Take | None = None) -> None:
    """Drive the job given on stdin, in a process that outlives its launcher."""
    job = Job.of_json(json.load(sys.stdin))
    if os.fork():
        os._exit(0)
    end_at_sigterm_alone()
    store = Path(MusterPaths.of_home(home()).store)
    job = dataclasses.replace(job, tree=stored(job.tree, store), library=stored(job.library, store))
    drive(job, Path(folder_name), take)


def drive(job: Job, folder: Path, take: Take | None = None) -> None:
    """Run the job to its verdict, in its folder.

    If the launching command is gone before the first report, the job is not started.
    """
    run = RunFolder(folder, "run", detached=True, max_log=job.max_log)
    word = _FirstWord()
    try:
        with (take or _own_hosts)(job, run, word.waits) as hosts:
            result = _attempts(hosts, run, word).run()
    except (MusterError, KeyboardInterrupt) as error:
        if word.said and run.waits:
            _tell(notify(job.notify, end_unstarted(run.path, *why_unstarted(error, run.path))))
            return
        if word.said:  # a job that has started leaves checkpoints and logs, which belong to the user
            raise
        shutil.rmtree(folder, ignore_errors=True)
        word.refused(error)
    else:
        _tell(notify(job.notify, result))


def _attempts(hosts: Hosts, run: RunFolder, word: _FirstWord) -> Attempts:
    job = hosts.job

    def on_wait(line: str) -> None:
        run.wait(job.spec, line)
        word.waits(f"job {job.spec.job}: {line}")

    packages = Present(job.spec.environment, job.spec.packages) if job.spec.environment else None
    given: dict[str, Any] = {"blame": hosts.blame, "packages": packages, "on_wait": on_wait}
    return Attempts(job, hosts.open_pipe, run, (run,), word.started, **given)


def _tell(why: str) -> None:
    """Write why --notify failed, if it did, into driver.log."""
    if why:
        sys.stderr.write(f"{why}\n")


class _FirstWord:
    """The only report to the driver that hands the job over: that the job runs, or why it does not."""

    def __init__(self) -> None:
        self.said = False

    def waits(self, text: str) -> None:
        """Report that the job waits for its hosts."""
        if not self.said:
            self._say(title=text)

    def started(self, plan: LaunchPlan) -> None:
        """Report that the job starts now."""
        if not self.said:
            self._say(title=plan.title)

    def refused(self, error: BaseException) -> None:
        """Report why the job does not start."""
        reasons = error.reasons if isinstance(error, UnfitError) else ()
        status = error.exit_status if isinstance(error, MusterError) else TERMINATED
        with contextlib.suppress(MusterError):
            self._say(error=str(error) or "stopped before it started", unfit=reasons, exit_status=status)

    def _say(self, **word: object) -> None:
        """`MusterError` if the driver that waits for this word has ended."""
        try:
            os.write(sys.stdout.fileno(), json.dumps(word).encode() + b"\n")
        except BrokenPipeError:
            raise MusterError("the driver that launched this job ended before the job started") from None
        self.said = True
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # driver.log, from here on


@contextlib.contextmanager
def _own_hosts(job: Job, run: RunFolder, waits: Callable[[str], None]) -> Iterator[Hosts]:
    """The hosts that the job names, at once."""
    yield Hosts(job, _opener(job))


def _opener(job: Job) -> OpenPipe:
    head = job.hosts[0].name

    def open_pipe(host: Host) -> Pipe:
        if host.name == head:
            return LocalPipe(None)  # the host's agent has started this driver with the job's Python
        return OpenSshPipe(host, job.python or job.pythons.get(host.name, "python3"), head=head)

    return open_pipe


def end_at_sigterm_alone() -> None:
    """Let SIGTERM interrupt a driver that runs without a terminal: `muster stop` and Slurm send it.

    SIGQUIT does the same, and writes the stacks of its threads into driver.log.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    interrupts.begin((signal.SIGTERM, signal.SIGQUIT), END_SECONDS)
