"""The control groups of a process, in both versions: their files, and the processors that they allow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from .processes import peek

ROOT = "/sys/fs/cgroup"
_V1_FOLDERS = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",)}


def group_files(controller: str, v2: str, v1: str, process: str = "self", root: str = "") -> Iterator[str]:
    """Possible paths of a file of a process's group, then of the groups above it.

    In a container the group is the root of the mount. `v2`, `v1`: the file's name in each version.
    `process`: its name in /proc. `root`: a folder with the files of another machine, for tests.
    """
    for line in peek(f"{root}/proc/{process}/cgroup").split("\n"):
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        mounts = _V1_FOLDERS[controller] if controllers else ("",)
        for mount in mounts if group else ():
            for above in _with_those_above(group):
                folder = f"{root}{ROOT}/{mount}".rstrip("/") + above
                yield f"{folder}/{v1 if controllers else v2}"


def _with_those_above(group: str) -> Iterator[str]:
    while group not in {"", "/"}:
        yield group
        group = os.path.dirname(group)
    yield ""


def usable_cores(root: str = "") -> int:
    """The processors that this process may use: by its affinity, and by the CPU quotas of its groups."""
    quotas = [
        quota
        for path in group_files("cpu", "cpu.max", "cpu.cfs_quota_us", root=root)
        if (quota := _quota(path)) is not None
    ]
    # More threads than a quota allows would all be stopped for a part of each period.
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, quotas)]))


def _quota(path: str) -> float | None:
    """The processors that a group may use at a time; None without a quota."""
    period = "" if path.endswith("cpu.max") else peek(path.removesuffix("quota_us") + "period_us", 64)
    with contextlib.suppress(ValueError, ZeroDivisionError):  # "max" is no number
        quota, each = map(int, f"{peek(path, 64)} {period}".split())
        return quota / each if quota > 0 else None
    return None
