"""A detached launch on hosts of Slurm: a batch job, whose hosts are known only when it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..console.screen import Screen
from ..console.terminal import harmless_lines
from ..jobs.job import Job
from ..slurm.batch import batch_of, submit


def hand_to_slurm(job: Job, words: Sequence[str], runs: Path, screen: Screen, *, dry: bool) -> None:
    """Submit the job, or print what would be submitted."""
    batch, name = batch_of(job, words, runs), job.spec.job
    if dry:
        sys.stdout.write(harmless_lines(str(batch)))
        return
    number = submit(job, batch, os.environ)
    screen.say(f"job {name} is Slurm's job {number}; its folder is {batch.folder}")
    screen.say(f"detached; its driver runs on the first host: muster attach {name}, muster stop {name}")
