"""The GPUs of a host, as its agent describes them (deploy/agent/host/gpus.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..decode import AtMost, Like
from .bounds import Count, Name, Pid, Version, Words

MOST_GPUS = 1024
PciAddress = Annotated[str, Like(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")]
"""`0000:4e:00.0`; empty where it is not known."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that answers: memory in MiB, uncorrected memory errors since the driver was loaded."""

    index: Count
    used: Count
    total: Count
    ecc: Count
    pids: Annotated[tuple[Pid, ...], AtMost(1 << 16)]
    bus: PciAddress = ""
    persistence: bool | None = None
    """Whether the driver stays loaded between programs; None where there is no such choice."""
    mig: bool = False
    instances: Count = 0
    """Into how many parts MIG divides it."""
    remap: Literal["", "pending", "failed"] = ""
    """Whether rows of its memory wait to be replaced by spare ones, or cannot be."""


@dataclass(frozen=True)
class Card:
    """A GPU of NVIDIA on the PCI bus, and the kernel's driver that has it; empty for none."""

    address: PciAddress
    device: Annotated[str, Like(r"(0x[0-9a-f]{1,4})?")]
    driver: Name


@dataclass(frozen=True)
class GpuHost:
    """What of a host its GPUs depend on, also where no driver is loaded."""

    cards: Annotated[tuple[Card, ...], AtMost(MOST_GPUS)] = ()
    devices: Count = 0
    """Device files of GPUs: in a container those that it was given."""
    switches: Count = 0
    """NVSwitches on the PCI bus."""
    architecture: Name = ""
    container: bool = False
    wsl: bool = False
    module: Version | None = None
    """The version of the driver's kernel module that is loaded."""
    open_module: bool = False
    libraries: Version | None = None
    """The version of the driver's libraries, where it is not that of the module."""
    fabric_manager: Literal["running", "stopped", "missing", "unknown"] = "unknown"
    fabric_manager_version: Version | None = None
    rdma: bool = False
    peer_memory: Literal["nvidia-peermem", "dma-buf", "none"] = "none"
    """How an RDMA device may reach the memory of a GPU."""
    toolkit: bool = False
    """Whether nvidia-ctk is there, which gives GPUs to containers."""
    cdi: bool = False
    """Whether a file of the Container Device Interface names them."""


@dataclass(frozen=True)
class GpuReport:
    """All of it: the GPUs that answer, what nvidia-smi said in place of the others, and the host."""

    gpus: Annotated[tuple[Gpu, ...], AtMost(MOST_GPUS)]
    gpu_error: Words | None
    gpu_host: GpuHost
