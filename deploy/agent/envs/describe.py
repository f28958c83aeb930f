"""The values that should be equal on all hosts of a job: packages, versions, limits, variables, mounts.

Nothing is imported and no GPU is touched, so this takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import glob
import locale
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator

from ..host.gpus import survey
from ..host.health import nccl_version, torch_cuda

LIMITS = ("nofile", "memlock", "nproc", "stack", "core", "as")
VARIABLES = ("NCCL_", "OMP_", "MKL_")
LOCALES = ("LC_ALL", "LC_CTYPE", "LANG")
# File systems of the kernel itself, and of a container engine: they hold no data of users.
_OWN_KINDS = {
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
    *("efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs"),
    *("securityfs", "squashfs", "sysfs", "tracefs"),
}
_ENGINES = re.compile(r"/(run|var/lib)/(docker|containers|containerd|user|netns|credentials)\b|/etc/|/snap/")
_DIST_INFO = re.compile(r"([A-Za-z0-9][\w.]*?)-(\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")
_PHYSICAL = "/sys/class/net/*/device"


def describe(environment: str) -> dict[str, str]:
    """Each value by its name; `environment`: a folder whose packages count, instead of the host's own."""
    folders = sys.path
    if environment:
        folders = glob.glob(f"{environment}/lib/python*/site-packages")
        sys.path[:0] = folders  # torch is searched there; this process ends with the command
    values = {"Python": _python_of(environment) if environment else platform.python_version()}
    for part in (_system(), _limits(), _variables(), _network(), _mounts()):
        values.update(part)
    packages = _packages(folders)
    values["torch"] = packages.pop("torch", "")
    values.update({f"package {name}": version for name, version in packages.items()})
    return {name[:256]: value[:4096] for name, value in values.items()}


def _python_of(environment: str) -> str:
    with contextlib.suppress(OSError), open(f"{environment}/pyvenv.cfg", encoding="utf-8") as settings:
        for line in settings:
            name, _, value = line.partition("=")
            if name.strip() == "version_info":
                return value.strip()
    return ""


def _system() -> Iterator[tuple[str, str]]:
    gpus = survey()
    yield "torch's CUDA", torch_cuda() or ""
    yield "NCCL of torch", nccl_version() or ""
    yield "driver", next((gpu["driver"] for gpu in gpus["gpus"]), gpus["gpu_host"]["module"]) or ""
    yield "kernel", platform.release()
    yield "glibc", " ".join(platform.libc_ver())
    yield "governor", _governor()
    yield "locale", _locale()
    yield "time zone", _time_zone()


def _governor() -> str:
    paths = glob.glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
    return ", ".join(sorted({*map(_line, paths)}))


def _locale() -> str:
    chosen = next((os.environ[name] for name in LOCALES if os.environ.get(name)), "C")
    try:
        locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        return f"{chosen} (not installed)"
    return chosen


def _time_zone() -> str:
    if os.environ.get("TZ"):
        return os.environ["TZ"]
    with contextlib.suppress(OSError):
        _, _, name = os.path.realpath("/etc/localtime").rpartition("/zoneinfo/")
        if name:
            return name if name != "Etc/UTC" else "UTC"
    return time.strftime("%Z")


def _limits() -> Iterator[tuple[str, str]]:
    for name in LIMITS:
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        shown = ["unlimited" if value == resource.RLIM_INFINITY else str(value) for value in (soft, hard)]
        yield f"limit {name}", " to ".join(dict.fromkeys(shown))


def _variables() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        if name.startswith(VARIABLES):
            yield f"variable {name}", value


def _network() -> Iterator[tuple[str, str]]:
    default = _default_route()
    if default:
        yield "MTU of the default route", _line(f"/sys/class/net/{default}/mtu")
    for path in glob.glob(_PHYSICAL):
        name = path.split("/")[4]
        if name != default and _line(f"/sys/class/net/{name}/operstate") == "up":
            yield f"MTU of {name}", _line(f"/sys/class/net/{name}/mtu")


def _default_route() -> str:
    with contextlib.suppress(OSError), open("/proc/net/route", encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if fields[1:2] == ["00000000"] and fields[7:8] == ["00000000"]:
                return fields[0]
    return ""


def _mounts() -> Iterator[tuple[str, str]]:
    """The file systems with data: the kind, the source if it is another machine, and the flags."""
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as table:
        for line in table:
            source, path, kind, options = line.split()[:4]
            if kind in _OWN_KINDS or _ENGINES.search(path):
                continue
            remote = f" from {source}" if ":" in source or source.startswith("//") else ""
            flags = [flag for flag in ("ro", "noexec") if flag in options.split(",")]
            yield f"mount {path}", f"{kind}{remote}{''.join(f', {flag}' for flag in flags)}"


def _packages(folders: list[str]) -> dict[str, str]:
    """The version of each package, by the name of its metadata folder; the first match counts."""
    versions: dict[str, str] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or "."):
                if match := _DIST_INFO.fullmatch(entry):
                    name = re.sub(r"[-_.]+", "-", match[1]).lower()
                    versions.setdefault(name, match[2])
    return versions


def _line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.readline().strip()
    return ""
