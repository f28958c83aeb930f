"""Requests to any host: its facts, its health, its ports, and which other hosts it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from ...decode import AtMost, Between, message
from ...hosts.bounds import (
    MOST_HOSTS,
    Address,
    AddressOrName,
    Bytes,
    Interface,
    Name,
    Number,
    Path,
    Pid,
    Port,
    Seconds,
    Text,
    Version,
)
from ...hosts.gpu_facts import MOST_GPUS, Gpu, GpuHost
from ...hosts.host_facts import Facts
from .request import Nothing, Pids, Request


@message(frozen=True)
class Time:
    """The host's time of day, and its monotonic clock (core/wire/clock.py)."""

    time: Seconds
    steady: Seconds


@message(frozen=True)
class OpenPort:
    """A port at which others try to reach the host, or why the host has none."""

    port: Port | None = None
    refused: Text | None = None


@message(frozen=True)
class PortThief:
    """The user who listens at the job's port after the job's end, if one does."""

    port: Port | None = None
    user: Name | None = None


@message(frozen=True)
class Reached:
    """The routes of a host to another: by address its own interface, or why the address is not reached."""

    interfaces: Annotated[Mapping[AddressOrName, Interface | None], AtMost(4096)] = field(
        default_factory=dict
    )
    refused: Annotated[Mapping[AddressOrName, Text], AtMost(4096)] = field(default_factory=dict)


@message(frozen=True)
class HostsReached:
    """The routes of a host to others."""

    reached: Annotated[Mapping[Name, Reached], AtMost(MOST_HOSTS)]


@message(frozen=True)
class Folder:
    """A folder in which jobs write: its free bytes, and the error of a test write.

    `inodes`: files that can still be made, None if they are not counted. `noexec`: no program starts there.
    """

    path: Path
    free: Bytes | None
    error: Text | None
    inodes: Annotated[int, Between(0, 1 << 64)] | None = None
    noexec: bool = False


@message(frozen=True)
class JobProcesses:
    """Processes of one job on a host; `kept`: its agent lives, so the job is running and not left over.

    `stopped`: the number of its agent if that is stopped (SIGSTOP); it may be all that is left.
    """

    job: Name
    pids: Pids
    kept: bool
    stopped: Pid | None = None


@message(frozen=True)
class HostHealth:
    """One host, as its agent measured it. Sizes in bytes; a limit of -1 is none."""

    user: Name
    own_addresses: Annotated[tuple[Address, ...], AtMost(1024)]
    """The addresses to which its own name resolves."""
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
    image: Annotated[Mapping[Name, Name], AtMost(256)] = field(default_factory=dict)
    """The record of the node image: flavor, track, the version of each part; empty without one."""
    kernel: Name | None = None
    glibc: Version | None = None
    numpy: Version | None = None
    mtu: Number | None = None
    """Of the interface with the default route."""
    variables: Text = ""
    """Those of NCCL in the login: `NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5`."""
    machine: Name = ""
    """Equal for two names of one machine; empty if unknown."""


TIME = Request("time", Time)
LOAD = Request("load", Nothing)
MODULES = Request("modules", Nothing)
FACTS = Request("facts", Facts)
HEALTH = Request("health", HostHealth)
OPEN_PORT = Request("open_port", OpenPort)
FREE_PORT = Request("free_port", Nothing)
PORT_THIEF = Request("port_thief", PortThief)
REACH = Request("reach", HostsReached)
