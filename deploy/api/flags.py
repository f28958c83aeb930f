"""The keywords of `launch` and `run`: the long flags of `muster launch`, with `_` for `-`.

docs/scripts/reference.py writes this module from the declarations of the flags.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

Path = str | os.PathLike[str]


class RunFlags(TypedDict, total=False):
    """The flags that `run` takes. docs/reference/commands/jobs.md has their meanings."""

    hosts: Path
    include: str
    exclude: str
    python: str
    slurm: str | Literal[True]
    image: str
    engine: Literal["docker", "podman", "apptainer"]
    mount: str | Sequence[str]
    gpus: str | int
    wait: str | int | Literal[True]
    notify: str
    np: int
    per_host: int
    env: Mapping[str, str] | Sequence[str]
    requirements: Path
    detach: bool
    max_restarts: int
    stall_timeout: int
    profile: str
    keep: str | Sequence[str]
    backend: Literal["auto", "gloo", "nccl", "mpi", "hccl"]
    network: str
    runs: Path
    slots: str | int
    python_version: str
    system_torch: bool
    torch_backend: str
    min_hosts: int
    spares: int
    preload: bool
    grace: int
    start_timeout: int
    rank: str | int
    no_record: bool
    max_log: str
    timings: bool
    launcher: Literal["mpirun", "torchrun"]


class LaunchFlags(RunFlags, total=False):
    """The flags that `launch` takes too, besides `script`."""

    module: str
    args: str
    dry_run: bool
