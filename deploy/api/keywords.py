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
    np: int
    backend: Literal["auto", "gloo", "nccl", "mpi", "hccl"]
    keep: str | Sequence[str]
    network: str
    max_restarts: int
    spares: int
    grace: int
    start_timeout: int
    max_log: str
    notify: str
    stall_timeout: int
    no_record: bool
    preload: bool
    gpus: str | int
    wait: str | int | Literal[True]
    image: str
    engine: Literal["docker", "podman", "apptainer"]
    mount: str | Sequence[str]
    requirements: Path
    python_version: str
    system_torch: bool
    torch_backend: str
    env: Mapping[str, str] | Sequence[str]
    detach: bool
    profile: str
    runs: Path
    slots: str | int
    min_hosts: int
    rank: str | int
    launcher: Literal["mpirun", "torchrun"]


class LaunchFlags(RunFlags, total=False):
    """The flags that `launch` takes too, besides `script`."""

    module: str
    args: str
    dry_run: bool
