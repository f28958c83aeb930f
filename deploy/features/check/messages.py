"""The request for the health of a host: its GPUs, limits, disks, and the processes that jobs left there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ...core.connect.requests import Pids, Request
from ...core.decode import AtMost, Between, Like, lazy_dataclass
from ...core.hosts.bounds import MOST_GPUS, Bytes, Count, Name, Number, Path, Pid, Text, Version

PciAddress = Annotated[str, Like(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")]
"""`0000:4e:00.0`; empty where it is not known."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that answers. Memory is in MiB; `ecc`: uncorrected memory errors since the driver was loaded."""

    index: Count
    used: Count
    total: Count
    ecc: Count
    pids: Annotated[tuple[Pid, ...], AtMost(1 << 16)]
    bus: PciAddress = ""
    persistence: bool | None = None
    """Whether the driver stays loaded between programs; None if the GPU has no such setting."""
    mig: bool = False
    instances: Count = 0
    """The number of instances into which MIG divides it."""
    remap: Literal["", "pending", "failed"] = ""
    """Whether the replacement of memory rows by spare ones is pending, or has failed."""


@dataclass(frozen=True)
class Card:
    """An NVIDIA GPU on the PCI bus, and the kernel driver that is bound to it; empty for none."""

    address: PciAddress
    device: Annotated[str, Like(r"(0x[0-9a-f]{1,4})?")]
    driver: Name


@dataclass(frozen=True)
class GpuHost:
    """The devices and software that the GPUs of a host depend on, also without a loaded driver."""

    cards: Annotated[tuple[Card, ...], AtMost(MOST_GPUS)] = ()
    devices: Count = 0
    """The number of device files of GPUs; in a container, of its GPUs."""
    switches: Count = 0
    """The number of NVSwitches on the PCI bus."""
    architecture: Name = ""
    container: bool = False
    wsl: bool = False
    module: Version | None = None
    """The version of the driver's kernel module that is loaded."""
    open_module: bool = False
    libraries: Version | None = None
    """The version of the driver's libraries, if it differs from that of the module."""
    fabric_manager: Literal["running", "stopped", "missing", "unknown"] = "unknown"
    fabric_manager_version: Version | None = None
    rdma: bool = False
    peer_memory: Literal["nvidia-peermem", "dma-buf", "none"] = "none"
    """How an RDMA device may reach the memory of a GPU."""
    toolkit: bool = False
    """Whether nvidia-ctk is installed, which gives GPUs to containers."""


@dataclass(frozen=True)
class GpuReport:
    """The GPUs that answer, the error of nvidia-smi about others, and their host."""

    gpus: Annotated[tuple[Gpu, ...], AtMost(MOST_GPUS)]
    gpu_error: Text | None
    gpu_host: GpuHost


@lazy_dataclass(frozen=True)
class Folder:
    """A folder in which jobs write: its free bytes, and the error of a test write.

    `inodes`: files that can still be made, None if they are not counted. `noexec`: no program starts there.
    """

    path: Path
    free: Bytes | None
    error: Text | None
    inodes: Annotated[int, Between(0, 1 << 64)] | None = None
    noexec: bool = False


@lazy_dataclass(frozen=True)
class JobProcesses:
    """Processes of one job on a host; `kept`: its agent lives, so the job is running and not left over.

    `stopped`: the number of its agent if that is stopped (SIGSTOP); it may be all that is left.
    """

    job: Name
    pids: Pids
    kept: bool
    stopped: Pid | None = None


@lazy_dataclass(frozen=True)
class HostHealth:
    """One host, as its agent measured it. Sizes in bytes; a limit of -1 is none."""

    user: Name
    folders: Annotated[tuple[Folder, Folder], AtMost(2)]
    """Muster's own folder, and the folder for temporary files."""
    shm_free: Bytes | None
    nofile: Number
    memlock: Number
    rdma: bool
    gpus: Annotated[tuple[Gpu, ...], AtMost(MOST_GPUS)]
    gpu_error: Text | None
    driver: Name | None
    driver_cuda: Version | None
    torch_cuda: Version | None
    nccl: Version | None
    jobs: Annotated[tuple[JobProcesses, ...], AtMost(1 << 14)]
    gpu_host: GpuHost = field(default_factory=GpuHost)
    """The parts that its GPUs depend on."""
    kernel: Name | None = None
    glibc: Version | None = None
    numpy: Version | None = None
    mtu: Number | None = None
    """Of the interface with the default route."""
    variables: Text = ""
    """Those of NCCL in the login: `NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5`."""
    machine: Name = ""
    """Equal for two names of one machine; empty if unknown."""


HEALTH = Request("health", HostHealth)
