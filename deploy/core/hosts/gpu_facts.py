"""The GPUs of a host, as its agent describes them (core/agent/gpus.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..decode import AtMost, Like
from .bounds import Count, Name, Pid, Text, Version

MOST_GPUS = 1024
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
    cdi: bool = False
    """Whether a file of the Container Device Interface names the GPUs."""


@dataclass(frozen=True)
class GpuReport:
    """The GPUs that answer, the error of nvidia-smi about others, and their host."""

    gpus: Annotated[tuple[Gpu, ...], AtMost(MOST_GPUS)]
    gpu_error: Text | None
    gpu_host: GpuHost
