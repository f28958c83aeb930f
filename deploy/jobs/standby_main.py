"""The standby driver of a detached job, a process on one of its hosts, started as the driver is (detach.py).

It does nothing until the agent that has started it is gone: that agent ends when the driver ends, or is
silent for 12 s. Then it tries to claim more than half of the job's hosts. It succeeds when their agents have
ended too, and then starts the next attempt. If the driver has left a record that it is not needed, it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ..connect.cluster import Cluster
from ..connect.pipe import OpenPipe
from ..console.text import count
from ..errors import MusterError, lines_of
from ..plan.spec import LaunchSpec
from .detached_main import attempts_of, opener_of, spec_in_background
from .fence import TakenOverError, has_majority, require_majority
from .notify import notify
from .run_folder import RunFolder
from .standby import NOT_NEEDED

TRY_SECONDS, PAUSE_SECONDS = 600.0, 1.0


def main(folder_name: str) -> None:
    """Wait in a process that outlives its parent; take the job over when its driver is gone."""
    spec = spec_in_background()
    open_pipe, own = opener_of(spec), spec.hosts[0].name
    (Path(folder_name) / "run" / NOT_NEEDED).unlink(missing_ok=True)  # of an earlier one
    unreached = _unreached(spec, open_pipe)
    enough = has_majority(len(spec.hosts) - len(unreached), spec)
    _report(_title(own, unreached), [] if enough else [*unreached.items()])
    if enough:
        _await_end_of_agent()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # driver.log from now on
        take_over(spec, Path(folder_name), open_pipe)


def _title(own: str, unreached: Mapping[str, str]) -> str:
    but = "".join(f"; it does not reach {line}" for line in lines_of(unreached.items()))
    return f"a standby driver waits on {own}{but}"


def _report(title: str, unfit: list[tuple[str, str]]) -> None:
    line = {"unfit": unfit} if unfit else {"title": title}
    os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")


def _unreached(spec: LaunchSpec, open_pipe: OpenPipe) -> dict[str, str]:
    """The hosts to which this driver cannot connect now, each with the reason."""
    with contextlib.closing(Cluster(spec.hosts, open_pipe, facts=False)) as cluster:
        return {host: error.reason for host, error in cluster.connect().items()}


def _await_end_of_agent() -> None:
    """Wait until the agent no longer holds the other end of standard output."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    while not poll.poll():
        pass


def take_over(spec: LaunchSpec, folder: Path, open_pipe: OpenPipe) -> None:
    """Start the next attempt once more than half of the hosts can be claimed, unless the job is over."""
    deadline = time.monotonic() + TRY_SECONDS
    while not (folder / "run" / NOT_NEEDED).exists():
        try:
            _drive(spec, folder, open_pipe)
        except TakenOverError as error:
            sys.stderr.write(f"{error}\n")
            return
        except MusterError as error:
            sys.stderr.write(f"cannot take the job over yet: {error}\n")
            if time.monotonic() > deadline:
                return
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _drive(spec: LaunchSpec, folder: Path, open_pipe: OpenPipe) -> None:
    unreached = _unreached(spec, open_pipe)
    reached = len(spec.hosts) - len(unreached)
    require_majority(reached, spec)
    if reached < spec.min_hosts:
        raise MusterError(f"{count(reached, 'host')} left, --min-hosts {spec.min_hosts}")
    run = RunFolder(folder, "run", detached=True, max_log=spec.max_log, again=True)
    run.record = json.loads(run.kept("job.json") or "{}")
    spec = dataclasses.replace(spec, attempt=run.record.get("attempt", 0) + 1)
    result = attempts_of(spec, open_pipe, run, unreached=unreached).run()
    if why := notify(spec.notify, result):
        sys.stderr.write(f"{why}\n")
