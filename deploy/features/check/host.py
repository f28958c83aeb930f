"""Judges one host on its own: software, slots, disk space, GPUs, processes of old jobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ...core.hosts.hostfile import Host
from ...core.plan.launcher import launcher_of, unfit
from ...core.plan.spec import LauncherName
from ...core.plan.torchrun import unfit_for_torch
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import count, ranges, size
from ...core.wire.limits import LEAST_FILES, LEAST_INODES, LONGEST_TMPDIR
from .finding import GIB, MIB, Finding, error, of_error, warning
from .host_reports import HostReport
from .messages import Card, Gpu, GpuReport

LOOK = "run nvidia-smi there; look at dmesg for Xid"
MOST_LEASES = 4
IDLE_MIB = 1024  # the driver itself keeps some hundred MiB
# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: 450, 525 and 580 run every
# CUDA 11, 12 and 13; docs.nvidia.com/cuda/cuda-toolkit-release-notes has the whole numbers.
DRIVER_FOR_CUDA = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def number(version: str) -> tuple[int, ...]:
    """2.13.0 -> (2, 13, 0): the leading numbers of a version."""
    return tuple(int(part) for part in takewhile(str.isdigit, re.split(r"[.+\-]", version)))


def driver_runs(driver_cuda: str, built_cuda: str) -> bool:
    """Whether a driver that supports CUDA up to `driver_cuda` runs programs built with `built_cuda`.

    Any driver of the same major version does ("minor version compatibility"); an older one needs cuda-compat.
    """
    return number(driver_cuda)[:1] >= number(built_cuda)[:1]


def oldest_driver(cuda: str) -> str:
    """The oldest Linux driver for a CUDA version."""
    known = [major for major in DRIVER_FOR_CUDA if (major,) <= number(cuda)]
    return DRIVER_FOR_CUDA[max(known, default=min(DRIVER_FOR_CUDA))]


@dataclass(frozen=True)
class Needs:
    """What GPUs must support: a CUDA version, an image's architecture (None: not compared), containers."""

    cuda: str | None = None
    architecture: str | None = None
    containers: bool = False


def of_gpus(host: str, report: GpuReport, needs: Needs, expected: int = 0) -> tuple[Finding, ...]:
    """All problems of the GPUs. `expected`: the number of GPUs by the driver's count."""
    rules = _GpuRules(host, report, needs)
    return (*rules.driver(), *rules.missing(expected), *rules.each(), *rules.around())


class _GpuRules:
    """The rules, for one host."""

    def __init__(self, name: str, report: GpuReport, needs: Needs) -> None:
        self.name, self.needs = name, needs
        self.gpus, self.error, self.host = report.gpus, report.gpu_error, report.gpu_host
        # A GPU that is passed to a virtual machine is not available to this host.
        self.cards = [card for card in self.host.cards if card.driver != "vfio-pci"]

    def driver(self) -> Iterator[Finding]:
        """Findings about the driver as a whole."""
        host, cards = self.host, self.cards
        held = [card for card in cards if card.driver == "nouveau"]
        if held:
            text = f"nouveau drives {count(len(held), 'NVIDIA GPU')}: CUDA needs NVIDIA's own driver"
            remedy = "install NVIDIA's driver, which keeps nouveau out, and restart the host"
            yield warning("driver.nouveau", self.name, text, remedy)
        elif cards and host.module is None and not host.wsl and not self.gpus:
            text = f"{count(len(cards), 'NVIDIA GPU')} on the PCI bus, and no driver is loaded"
            remedy = "install the driver and restart the host; if it is installed: modprobe nvidia"
            yield warning("driver.missing", self.name, text, remedy)
        if host.libraries and host.module:
            text = (
                f"the kernel has driver {host.module} loaded, and the driver's libraries are {host.libraries}"
            )
            remedy = "restart the host: the driver was upgraded while it was in use"
            yield error("driver.restart-needed", self.name, text, remedy)
        wanted, version = self.needs.cuda, host.libraries or host.module
        if wanted and version and number(version) < number(oldest_driver(wanted)):
            text = f"driver {version} does not run CUDA {wanted}"
            remedy = f"install driver {oldest_driver(wanted)} or newer, or use a build for an older CUDA"
            yield error("driver.too-old", self.name, text, remedy)

    def missing(self, expected: int) -> Iterator[Finding]:
        """Findings for GPUs that do not answer."""
        host = self.host
        if host.container and host.module and not (host.devices or self.gpus):
            if self.cards:
                text = "the driver is loaded on the host, and none of its GPUs was given to this container"
                remedy = (
                    "install nvidia-container-toolkit there, and start it with --device nvidia.com/gpu=all"
                )
                yield error("gpu.not-given", self.name, text, remedy)
            return
        lost = list(self._lost())
        for card in lost:
            text = f"the GPU at {card.address} is on the PCI bus and does not answer: it fell off the bus"
            remedy = (
                "look at dmesg there for Xid 79; power the host off and on, and replace it if it comes back"
            )
            yield error("gpu.lost", self.name, text, remedy)
        if lost or host.libraries:
            return
        number_of_gpus = expected or len(self.cards)
        if self.error:
            text = f"{count(number_of_gpus, 'GPU')} that cannot be asked: {self.error}"
            yield error("gpu.failing", self.name, text, LOOK)
        elif len(self.gpus) < expected:
            text = f"{len(self.gpus)} of {count(expected, 'GPU')} answer"
            yield error("gpu.failing", self.name, text, LOOK)

    def _lost(self) -> Iterator[Card]:
        """GPUs on the PCI bus that nvidia-smi does not list, or that its error names."""
        if self.host.container or self.host.module is None:
            return  # a container may have only some of the GPUs
        listed, message = {gpu.bus for gpu in self.gpus}, (self.error or "").lower()
        for card in self.cards:
            if card.driver in {"nvidia", ""} and (
                card.address in message or (listed and card.address not in listed)
            ):
                yield card

    def each(self) -> Iterator[Finding]:
        """Findings for each GPU that answers."""
        for gpu in self.gpus:
            yield from self._memory(gpu)
            if gpu.mig:
                text = f"MIG divides GPU {gpu.index} into {gpu.instances} instances: a process sees only one"
                empty = f"MIG is on for GPU {gpu.index}, without an instance: no program can compute on it"
                remedy = f"nvidia-smi -i {gpu.index} -mig 0 when nothing runs on it, or make instances"
                if gpu.instances:
                    yield warning("gpu.mig", self.name, text, remedy)
                else:
                    yield error("gpu.mig", self.name, empty, remedy)
        slow = [gpu.index for gpu in self.gpus if gpu.persistence is False]
        if slow:
            text = (
                f"persistence mode is off for GPU {ranges(slow)}: each job waits until the driver is loaded"
            )
            remedy = "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1 after each start"
            yield warning("gpu.persistence-off", self.name, text, remedy)

    def _memory(self, gpu: Gpu) -> Iterator[Finding]:
        if gpu.ecc:
            text = f"GPU {gpu.index} has had {count(gpu.ecc, 'uncorrectable memory error')}"
            yield error("gpu.failing", self.name, text, "reset or replace it: nvidia-smi -q -d ECC")
        if gpu.remap == "failed":
            text = f"GPU {gpu.index} has no spare rows left for broken memory"
            yield error("gpu.failing", self.name, text, "replace it: nvidia-smi -q -d ROW_REMAPPER")
        elif gpu.remap == "pending":
            text = f"GPU {gpu.index} is to replace broken rows of its memory at its next reset"
            remedy = f"when nothing runs on it: nvidia-smi --gpu-reset -i {gpu.index}, or restart the host"
            yield warning("gpu.reset-needed", self.name, text, remedy)
        if gpu.pids or gpu.used > IDLE_MIB:
            unseen = "processes that are not visible there"
            whose = f"processes {', '.join(map(str, gpu.pids))}" if gpu.pids else unseen
            text = f"GPU {gpu.index}: {gpu.used} of {gpu.total} MiB in use by {whose}"
            yield warning("gpu.busy", self.name, text, "wait for them, or end them if they are left over")

    def around(self) -> Iterator[Finding]:
        """Findings about software and hardware that GPUs need besides their driver."""
        host = self.host
        if host.module and host.switches:
            yield from self._fabric()
        if host.module and host.rdma and host.peer_memory == "none":
            text = "RDMA cannot reach the GPUs' memory: there is neither nvidia-peermem nor dma-buf"
            remedy = (
                "modprobe nvidia-peermem, or take the driver's open kernel modules on Linux 5.12 or newer"
            )
            yield warning("gpu.without-rdma", self.name, text, remedy)
        if host.module and self.needs.containers and not host.container and not host.toolkit:
            text = "no container toolkit: a node container gets no GPU"
            yield warning("gpu.without-toolkit", self.name, text, "install nvidia-container-toolkit")
        if host.wsl and self.gpus:
            text = "WSL: GPUs and driver are those of Windows, which also decides what other hosts reach"
            remedy = (
                "use it alone, or with networkingMode=mirrored in .wslconfig and the ports open in Windows"
            )
            yield warning("gpu.wsl", self.name, text, remedy)
        wanted = self.needs.architecture
        if wanted and host.architecture and wanted != host.architecture:
            text = f"its processor is {host.architecture}, and the image is for {wanted}"
            remedy = f"build the image on a machine with {host.architecture}"
            yield error("image.architecture-differs", self.name, text, remedy)

    def _fabric(self) -> Iterator[Finding]:
        host = self.host
        if host.fabric_manager in {"stopped", "missing"}:
            state = "is not installed" if host.fabric_manager == "missing" else "does not run"
            text = f"it has NVSwitches, and Fabric Manager {state}: CUDA does not start"
            install = f"install nvidia-fabricmanager of the driver's version {host.module}, and then: "
            remedy = (
                f"{install * (host.fabric_manager == 'missing')}systemctl enable --now nvidia-fabricmanager"
            )
            yield error("fabric.down", self.name, text, remedy)
        version = host.fabric_manager_version
        if version and version != host.module:
            text = (
                f"Fabric Manager {version}, and the driver is {host.module}: they work only with each other"
            )
            yield error("fabric.version-differs", self.name, text, f"install Fabric Manager {host.module}")


# A launch brings up to 1 GiB of code and a copy of it. Below DISK_FULL even logs do not fit.
DISK_FULL, DISK_LOW = 64 * MIB, 2 * GIB
# For NCCL, Open MPI and data loaders: 64 MiB, a container's default, is too little.
SHM_PER_RANK = 128 * MIB
# A rank and its launcher need sockets and log pipes, and a rank needs one socket to each other rank.
NOFILE_LEAST, NOFILE_PER_RANK = 1024, 8


def of_host(host: Host, measured: HostReport, launcher: LauncherName, ranks: int) -> Iterator[Finding]:
    """All findings about this host that do not depend on other hosts."""
    yield from _software(host, measured, launcher)
    yield from _slots(host, measured)
    yield from _room(host, measured, ranks)
    yield from _gpus(host, measured)
    yield from _jobs(host, measured)


def _software(host: Host, measured: HostReport, launcher: LauncherName) -> Iterator[Finding]:
    # A launcher that needs torch has a remedy of its own for a host without it.
    reasons = (unfit_for_torch(measured.facts), unfit(host, measured.facts, launcher_of(launcher)))
    yield from {reason.kind: of_error(host.name, reason) for reason in reasons if reason}.values()


def _slots(host: Host, measured: HostReport) -> Iterator[Finding]:
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


def _room(host: Host, measured: HostReport, ranks: int) -> Iterator[Finding]:
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


def _start(host: Host, measured: HostReport) -> Iterator[Finding]:
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


def _gpus(host: Host, measured: HostReport) -> Iterator[Finding]:
    facts, health = measured.facts, measured.health
    numbers = {gpu.index for gpu in measured.leased}
    others = [replace(gpu, pids=(), used=0) if gpu.index in numbers else gpu for gpu in health.gpus]
    report = GpuReport(tuple(others), health.gpu_error, health.gpu_host)
    if leases := fold((gpu.index, (gpu.job, gpu.user)) for gpu in measured.leased):
        shown = [f"GPU {ranges(gpus)}: job {job} of {user}" for gpus, (job, user) in leases[:MOST_LEASES]]
        shown += [f"and {len(leases) - MOST_LEASES} more"] if len(leases) > MOST_LEASES else []
        text = harmless(f"leased: {'; '.join(shown)}")
        yield warning("gpu.leased", host.name, text, "wait for it: muster launch --wait")
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


def _jobs(host: Host, measured: HostReport) -> Iterator[Finding]:
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
