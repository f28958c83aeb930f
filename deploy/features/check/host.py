"""Judges one host on its own: software, slots, disk space, GPUs, its name, processes of old jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...core.hosts.finding import GIB, MIB, Finding, error, of_error, warning
from ...core.hosts.gpus import GpuReport
from ...core.hosts.hostfile import Host
from ...core.plan.launcher import launcher_of, unfit
from ...core.plan.spec import LauncherName
from ...core.plan.torchrun import unfit_for_torch
from ...core.text.text import count, size
from ...core.wire.limits import LEAST_FILES, LEAST_INODES, LONGEST_TMPDIR
from ..image.compatibility import driver_runs, oldest_driver
from ..leases.plan import holders
from .gpus import Needs, of_gpus
from .measurements import Measured

# A launch brings up to 1 GiB of code and a copy of it. Below DISK_FULL even logs do not fit.
DISK_FULL, DISK_LOW = 64 * MIB, 2 * GIB
# For NCCL, Open MPI and data loaders: 64 MiB, a container's default, is too little.
SHM_PER_RANK = 128 * MIB
# A rank and its launcher need sockets and log pipes, and a rank needs one socket to each other rank.
NOFILE_LEAST, NOFILE_PER_RANK = 1024, 8


def of_host(host: Host, measured: Measured, launcher: LauncherName, ranks: int) -> Iterator[Finding]:
    """All findings about this host that do not depend on other hosts."""
    yield from _software(host, measured, launcher)
    yield from _slots(host, measured)
    yield from _room(host, measured, ranks)
    yield from _gpus(host, measured)
    yield from _jobs(host, measured)


def _software(host: Host, measured: Measured, launcher: LauncherName) -> Iterator[Finding]:
    # A launcher that needs torch has a remedy of its own for a host without it.
    reasons = (unfit_for_torch(measured.facts), unfit(host, measured.facts, launcher_of(launcher)))
    yield from {reason.kind: of_error(host.name, reason) for reason in reasons if reason}.values()


def _slots(host: Host, measured: Measured) -> Iterator[Finding]:
    cores, gpus = measured.facts.cores, measured.facts.gpus
    if host.slots > cores:
        yield warning(
            "slots.above-cores",
            host.name,
            f"slots={host.slots} on {count(cores, 'core')}: ranks share cores",
            f"slots={cores} in the hosts file",
        )
    if 0 < gpus < host.slots:
        yield error(
            "slots.above-gpus",
            host.name,
            f"slots={host.slots} on {count(gpus, 'GPU')}: NCCL allows one rank on each",
            f"slots={gpus} in the hosts file (more only for programs that leave the GPUs alone)",
        )


def _room(host: Host, measured: Measured, ranks: int) -> Iterator[Finding]:
    health = measured.health
    yield from _start(host, measured)
    for folder in health.folders:
        path = shlex.quote(folder.path)
        if folder.inodes is not None and folder.inodes < LEAST_INODES:
            text = f"{count(folder.inodes, 'more file')} at most can be made for {folder.path}"
            yield error("disk.no-inodes", host.name, text, f"remove some: df -i {path}")
        elif folder.free is not None and folder.free < DISK_FULL:
            text = f"{size(folder.free)} free for {folder.path}"
            yield error("disk.full", host.name, text, f"remove files there: df {path}")
        elif folder.error:
            yield error(
                "disk.not-writable",
                host.name,
                f"{health.user} cannot write to {folder.path}: {folder.error}",
                f"make it {health.user}'s own, and its file system writable",
            )
        elif folder.free is not None and folder.free < DISK_LOW:
            text = f"{size(folder.free)} free for {folder.path}"
            yield warning("disk.low", host.name, text, f"remove files there: df {path}")
    needed = host.slots * SHM_PER_RANK
    if health.shm_free is not None and health.shm_free < needed:
        yield warning(
            "shm.small",
            host.name,
            f"{size(health.shm_free)} free in /dev/shm for {count(host.slots, 'rank')}: "
            "too little ends in a bus error",
            f"{size(needed)} at least: --shm-size for a container, or remove what lies there",
        )
    files = max(NOFILE_LEAST, ranks * NOFILE_PER_RANK)
    if 0 <= health.nofile < files:
        severity = error if health.nofile < LEAST_FILES else warning
        yield severity(
            "nofile.low",
            host.name,
            f"{health.nofile} open files allowed; {count(ranks, 'rank')} may need {files}",
            "raise nofile in /etc/security/limits.d or for sshd (ulimit -n)",
        )
    if health.rdma and health.memlock >= 0:
        yield warning(
            "memlock.low",
            host.name,
            f"{size(health.memlock)} of memory may be locked, and there is an InfiniBand or RoCE device",
            "memlock unlimited in /etc/security/limits.d or for sshd (ulimit -l)",
        )


def _start(host: Host, measured: Measured) -> Iterator[Finding]:
    """Findings for which the agent would refuse to start a job (core/wire/limits.py)."""
    health = measured.health
    muster, temporary = health.folders
    if muster.noexec:
        text = f"{muster.path} is on a file system that starts no programs (noexec)"
        remedy = "mount it without noexec, or give that login another home"
        yield error("disk.noexec", host.name, text, remedy)
    length = len(temporary.path.encode(errors="surrogateescape"))
    if length > LONGEST_TMPDIR:
        text = (
            f"TMPDIR has {length} bytes, and a Unix socket in it room for {LONGEST_TMPDIR}: {temporary.path}"
        )
        yield error("tmpdir.too-long", host.name, text, "set a shorter TMPDIR for that login")


def _gpus(host: Host, measured: Measured) -> Iterator[Finding]:
    facts, health = measured.facts, measured.health
    leased = [gpu for gpu in measured.leases.gpus if gpu.job] if measured.leases else []
    numbers = {gpu.index for gpu in leased}
    others = [replace(gpu, pids=(), used=0) if gpu.index in numbers else gpu for gpu in health.gpus]
    report = GpuReport(tuple(others), health.gpu_error, health.gpu_host)
    if leased:
        shown = holders([replace(gpu, since=0.0) for gpu in leased], 0.0)
        yield warning("gpu.leased", host.name, f"leased: {shown}", "wait for it: muster launch --wait")
    # Without the CUDA version of libcuda, the version of the kernel module is compared.
    needs = Needs(cuda=health.torch_cuda if health.driver_cuda is None else None)
    yield from of_gpus(host.name, report, needs, facts.gpus)
    torch, driver = health.torch_cuda, health.driver_cuda
    if facts.gpus and facts.torch and torch is None:
        yield warning(
            "torch.without-cuda",
            host.name,
            f"torch {facts.torch} was built without CUDA, for a host with {count(facts.gpus, 'GPU')}",
            "install a CUDA build of torch, or take --backend gloo",
        )
    if torch and driver and not driver_runs(driver, torch):
        yield error(
            "driver.too-old",
            host.name,
            f"torch was built with CUDA {torch}, the driver runs CUDA up to {driver}",
            f"install driver {oldest_driver(torch)} or newer, or a torch for CUDA {driver}",
        )


def own_name(host: Host, measured: Measured) -> Iterator[Finding]:
    """Findings for a host that does not resolve its own name, or resolves it to loopback only."""
    name, addresses = measured.facts.hostname, measured.health.own_addresses
    if not addresses:
        yield warning(
            "name.unknown",
            host.name,
            f"it does not resolve its own name {name}",
            f"add it to /etc/hosts there: {_an_address(measured)} {name}",
        )
    elif all(address.startswith("127.") or address == "::1" for address in addresses):
        yield warning(
            "name.loopback",
            host.name,
            f"its own name {name} is {', '.join(addresses)} there: "
            "programs that publish it cannot be reached",
            f"in /etc/hosts there: {_an_address(measured)} {name}",
        )


def _jobs(host: Host, measured: Measured) -> Iterator[Finding]:
    for job in measured.health.jobs:
        pids = " ".join(map(str, job.pids))
        if job.stopped:
            agent = f"agent is stopped (SIGSTOP): {job.stopped}"
            text = (
                f"{_processes(job.pids)} of job {job.job}, whose {agent}"
                if job.pids
                else f"{job.job}: its {agent}"
            )
            remedy = f"there: kill -CONT {job.stopped}; it then ends its job, or continues if that still runs"
            yield warning("processes.agent-stopped", host.name, text, remedy)
        elif job.kept:
            text = f"job {job.job} is running there ({_processes(job.pids)})"
            yield warning("processes.running", host.name, text, "wait for it, or stop it")
        else:
            text = f"{_processes(job.pids)} of job {job.job}, whose agent is gone: {pids}"
            yield warning("processes.left", host.name, text, f"there: kill {pids}")


def _processes(pids: Sequence[int]) -> str:
    return "1 process" if len(pids) == 1 else f"{len(pids)} processes"


def _an_address(measured: Measured) -> str:
    return measured.addresses[0] if measured.addresses else "its address"
