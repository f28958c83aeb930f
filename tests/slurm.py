"""Programs of Slurm for tests without Slurm: small scripts on PATH."""

from __future__ import annotations

import os
import stat
from pathlib import Path

SHOW_JOB = (
    'case "$2" in job) echo "JobId=12 JobState={job} Reason={why} Dependency=(null)" ;; node) {node} ;; esac'
)
# All hosts are this one: a step starts its one task here.
SRUN = """
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
exec "$@"
"""
SCONTROL = (
    'case "$2" in hostnames) printf "n1\\n" ;; job) echo "JobId=7 JobState=RUNNING Reason=None" ;; esac'
)
SBATCH = """
printf '%s\\n' "$@" > {folder}/sbatch.argv
for script; do :; done
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2
setsid sh "$script" > {folder}/driver.log 2>&1 < /dev/null &
echo $! > {folder}/pid
echo 7
"""


def put_programs(folder: Path, **texts: str) -> None:
    """Write these shell texts as programs of these names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def put_slurm_of_this_machine(folder: Path) -> dict[str, str]:
    """Programs of a Slurm whose only node is this machine; returns the variables that make them be found."""
    texts = {"sbatch": SBATCH.format(folder=folder), "srun": SRUN, "scontrol": SCONTROL}
    squeue = (
        f'[ "$2" != --jobs ] || exec echo "PENDING|Resources|N/A"\n'
        f'kill -0 $(cat {folder}/pid) 2>/dev/null && echo "7 RUNNING|None|N/A"; true'
    )
    scancel = f'for job; do :; done; [ "$1" != --batch ] || kill -TERM $(cat {folder}/pid)'
    put_programs(folder, **texts, squeue=squeue, scancel=scancel)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}
