"""The facts of this host: versions, cores, GPUs and addresses, in a tenth of a second."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata

from ..wire.frames import Frame
from ..wire.os_errors import explain
from .cgroups import usable_cores
from .gpus import Machine, amd_gpus, ascend_npus, device_files
from .running_jobs import GPUS, running_jobs

JOBS_SECONDS = 4.0  # a process that is stuck in the kernel may make the look for jobs wait forever


class FactsHandler:
    """Answers the request for the facts of this host."""

    def do_facts(self, request: Frame, payload: bytes) -> Frame:
        """The facts of this host."""
        return facts()


def facts() -> Frame:
    """Versions, cores, GPUs and addresses of this host, without importing torch (that takes seconds)."""
    mpirun = find_mpirun()
    mpi: list[tuple[str | None, str | None]] = []
    asking = threading.Thread(target=lambda: mpi.append(mpirun_version(mpirun)), daemon=True)
    asking.start()  # mpirun may be on a network file system
    jobs: list[list[Frame]] = []
    looking = threading.Thread(target=lambda: jobs.append(running_jobs()), daemon=True)
    looking.start()
    machine = Machine()
    addresses, gpus = host_addresses(), gpu_count(machine)
    described = {
        "hostname": socket.gethostname(),
        "home": os.path.expanduser("~"),
        "uid": os.getuid(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "torch": distribution_version("torch"),
        "mpi4py": distribution_version("mpi4py"),
        "mpirun": mpirun,
        "cores": usable_cores(),
        "gpus": gpus,
        "devices": gpus or len(amd_gpus(machine)) or len(ascend_npus(machine)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "addresses": [address for _, address in sorted(addresses, key=bridge_last)],
        "interfaces": {address: name for name, address in addresses},
    }
    asking.join()
    looking.join(JOBS_SECONDS)
    return {**described, "mpi": mpi[0][0], "mpi_error": mpi[0][1], "jobs": jobs[0] if jobs else []}


def distribution_version(name: str) -> str | None:
    """The version of an installed Python distribution, None where it is missing."""
    with contextlib.suppress(Exception):  # its metadata may be damaged in any way
        return metadata.version(name)
    return None


def glibc_version() -> str:
    """The version of the C library, `2.36`; empty if it is not glibc."""
    with contextlib.suppress(ValueError, OSError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return version if name == "glibc" else ""
    return ""


def find_mpirun() -> str | None:
    """mpirun beside this Python (a virtual environment), else on PATH, else where vendors put it."""
    path = os.environ.get("PATH", os.defpath)
    folders = (os.path.dirname(sys.executable), path, "/opt/openmpi/bin", "/usr/lib64/openmpi/bin")
    return shutil.which("mpirun", path=os.pathsep.join(folders))


def mpirun_version(mpirun: str | None) -> tuple[str | None, str | None]:
    """The version, `5.0.7` from `mpirun (Open MPI) 5.0.7`, and the error if mpirun does not print it.

    The version is None without mpirun, and for the mpirun of another MPI.
    """
    if mpirun is None:
        return None, None
    try:
        done = subprocess.run(
            [mpirun, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False
        )
    except OSError as error:
        return None, explain(error)
    except subprocess.TimeoutExpired as error:
        return None, f"no answer within {error.timeout} s"
    text = done.stdout.decode(errors="replace").strip()
    match = re.search(r"\(Open MPI\) (\d+\.\d+\.\d+)", text)
    if match or done.returncode == 0:
        return match.group(1) if match else None, None
    last = text.splitlines()[-1][-200:] if text else "no message"
    return None, f"it ended with {done.returncode}: {last}"


def gpu_count(machine: Machine) -> int:
    """The number of NVIDIA GPUs, as their driver counts them, or of their device files."""
    return len(machine.names(GPUS)) or device_files(machine)


def host_addresses() -> list[tuple[str, str]]:
    """(interface, address) of every address of this host beyond loopback, IPv4 before IPv6."""
    addresses = [(name, address) for _, name in socket.if_nameindex() for address in ipv4_address(name)]
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as table:
        for line in table:
            number, _, _, scope, _, name = line.split()
            if scope == "00":  # global
                addresses.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))))
    return [(name, address) for name, address in addresses if not address.startswith("127.")]


def ipv4_address(interface: str) -> Iterator[str]:
    """The IPv4 address of an interface, if it has one: SIOCGIFADDR, netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", interface.encode()[:15]))
        yield socket.inet_ntoa(answer[20:24])


def bridge_last(entry: tuple[str, str]) -> bool:
    """Sort key: bridges of container engines have the same address on every host, so they come last."""
    return entry[0].startswith(("docker", "br-", "virbr", "veth", "cni", "podman"))


def interface_of(address: str) -> str | None:
    """The interface that has an address."""
    return next(
        (name for name, host_address in host_addresses() if host_address == address),
        "lo" if address.startswith("127.") else None,
    )
