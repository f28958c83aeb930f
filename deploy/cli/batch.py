"""Launches whose driver runs in a batch job or on a login node of Slurm. Slurm gives the hosts later."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..connect.cluster import Cluster
from ..connect.opener import access_beside
from ..console.progress import OnStage
from ..console.screen import Screen
from ..console.terminal import harmless, harmless_lines
from ..console.text import count
from ..errors import HostfileError, UsageError
from ..hosts import hostfile
from ..hosts.hostfile import Host
from ..jobs.detach import detach
from ..jobs.hosts_record import HostsRecord, kept_if_taken
from ..launch.stages import with_hosts
from ..plan.spec import LaunchSpec
from ..slurm.batch import batch_of, submit
from ..slurm.job_state import why_waits
from .shared import hosts_file_of, print_note

LOGIN_DRIVER = "muster.deploy.slurm.login_main"


def submit_to_slurm(
    spec: LaunchSpec, slurm_options: Sequence[str], runs: Path, screen: Screen, *, dry: bool
) -> None:
    """Submit the job, or print what would be submitted."""
    batch, name = batch_of(spec, slurm_options, runs), spec.job
    if dry:
        sys.stdout.write(harmless_lines(str(batch)))
        return
    number = submit(spec, batch, os.environ)
    screen.say(f"job {name} is Slurm's job {number}; its folder is {batch.folder}")
    if why := why_waits(number):
        print_note(f"note: Slurm never gives hosts to its job {number}: {why}")
    screen.say(detached(name, "the first host"))


def start_on_login_node(
    spec: LaunchSpec, login: str, runs: Path, screen: Screen, on_stage: OnStage, *, dry: bool
) -> None:
    """Start the driver on a login node, which asks Slurm for the hosts by `spec.slurm`."""
    if dry:
        raise UsageError(
            "--dry-run does not work with --slurm-login: Slurm has not given hosts yet. "
            "On the login node, use --slurm ... --detach --dry-run"
        )
    node, name = _login_node(login), spec.job
    access = access_beside(hosts_file_of(""), spec.python)
    on_stage(with_hosts("connecting"))
    with (
        kept_if_taken(runs, name, HostsRecord((node,), access, True, str(spec.tree.root))),
        Cluster([node], access.open) as cluster,
    ):
        screen.say(harmless(detach(spec, cluster, LOGIN_DRIVER, on_stage=on_stage)))
    screen.say(detached(name, node.name))


def detached(job: str, host: str) -> str:
    """The last line of a launch that does not wait for its job, with the next commands."""
    return f"detached; its driver is on {host}\n        muster attach {job}\n        muster stop {job}"


def _login_node(login: str) -> Host:
    """The host of `--slurm-login`, whose value is a line of a hosts file."""
    try:
        node, *others = hostfile.parse(login)
    except HostfileError as error:
        raise UsageError(f"--slurm-login {login}: {error.problems[0].text}") from None
    if others:
        raise UsageError(f"--slurm-login {login}: {count(1 + len(others), 'host')}; name one login node")
    return node
