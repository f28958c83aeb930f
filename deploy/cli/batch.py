"""Launches whose driver Slurm's side has: a batch job, or a driver on a login node. Hosts come later."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..console.screen import Screen
from ..console.terminal import harmless, harmless_lines
from ..errors import UsageError
from ..hosts import hostfile
from ..jobs.detach import detach
from ..jobs.job import Job
from ..slurm.batch import batch_of, submit

LOGIN_DRIVER = "muster.deploy.slurm.login_main"


def hand_to_slurm(job: Job, words: Sequence[str], runs: Path, screen: Screen, *, dry: bool) -> None:
    """Submit the job, or print what would be submitted."""
    batch, name = batch_of(job, words, runs), job.spec.job
    if dry:
        sys.stdout.write(harmless_lines(str(batch)))
        return
    number = submit(job, batch, os.environ)
    screen.say(f"job {name} is Slurm's job {number}; its folder is {batch.folder}")
    screen.say(f"detached; its driver runs on the first host: muster attach {name}, muster stop {name}")


def hand_to_login(job: Job, words: Sequence[str], login: str, screen: Screen, *, dry: bool) -> None:
    """Start the driver on a login node, which asks Slurm for the hosts."""
    if dry:
        raise UsageError(
            "--dry-run with --slurm-login: nobody knows the hosts yet; on the login node: --detach"
        )
    hosts, name = hostfile.parse(login), job.spec.job
    job = dataclasses.replace(job, slurm=tuple(words))
    with Cluster(hosts[:1], opener(Path("hosts.txt"), job.python)) as cluster:
        screen.say(harmless(detach(job, cluster, LOGIN_DRIVER)))
    listed = f"with a hosts file whose line is: {login}"
    screen.say(f"detached; its driver is on {hosts[0].name}: muster attach {name} --hosts FILE, {listed}")
