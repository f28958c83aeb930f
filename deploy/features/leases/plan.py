"""The GPUs that a job leases on a host, and the variables that show them to its ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.decode import lazy_dataclass
from ...core.errors import HostError, UsageError
from ...core.hosts.host_facts import Facts
from ...core.plan.flags import Options, flag
from ...core.plan.spec import ALL_GPUS, LaunchSpec
from ...core.text.terminal import harmless
from ...core.text.text import count, duration, ranges
from .messages import Device, Lease

VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""The variables that choose GPUs of a kind. A lease sets the first."""
CHOOSING = tuple(dict.fromkeys(name for names in VARIABLES.values() for name in names))
ALSO_CHOOSING = ("ZE_AFFINITY_MASK", "NVIDIA_VISIBLE_DEVICES")
"""Of GPUs that are not leased, and of a container engine."""
ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
NO_GPUS = tuple((names[0], "") for names in VARIABLES.values())
"""The variables of a job with `--gpus 0`."""
WITHOUT_LIMIT = "without limit"
"""The value of --wait that stands alone."""
MOST_HOLDERS = 4


def _number(text: str) -> int:
    """The value of `--gpus`."""
    if re.fullmatch(r"\d+@any", text):
        raise UsageError(f"--gpus {text}: @any was removed: use the number of GPUs for each host, --gpus 4")
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise UsageError(f"--gpus {text}: write a number of GPUs for each host: 4")
    return int(text)


def _seconds(text: str) -> float | None:
    """The value of `--wait`; None without a limit."""
    if text == WITHOUT_LIMIT:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"--wait {text}: write a whole number of seconds, or no value to wait without limit")
    return float(text)


@dataclass(frozen=True)
class LeaseOptions(Options):
    """The GPUs that a job leases."""

    gpus: int | None = flag(
        None,
        "reserve this number of GPUs on each host, and start a rank for each; 0: none (default: one GPU for "
        "each rank)",
        "N",
        group="Most used",
        parse=_number,
    )
    """None for one for each rank, or all if the program starts its own."""
    wait: float | None = flag(
        0.0,
        "wait for GPUs that others have leased, in the order of arrival; with SECONDS, no longer",
        "SECONDS",
        alone=WITHOUT_LIMIT,
        values=r"\d+",
        group="Shared hosts",
        parse=_seconds,
    )

    @property
    def variables(self) -> Sequence[tuple[str, str]]:
        """No GPU is visible with `--gpus 0`."""
        return NO_GPUS if self.gpus == 0 else ()

    def check(self, given: Mapping[str, Any]) -> None:
        """`UsageError` beside another source of GPUs."""
        for name in ("gpus", "wait"):
            if name in given and "slurm" in given:
                raise UsageError(f'--{name}: Slurm assigns GPUs and hosts; its options: --slurm "--gpus 4"')
        own = dict(setting.partition("=")[::2] for setting in given.get("env", ()))
        named = [name for name in (*CHOOSING, *ALSO_CHOOSING) if name in own]
        if named and self.gpus is not None:
            raise UsageError(f"--gpus and --env {named[0]} exclude each other; give one")
        if len({own[name] for name in named if name in CHOOSING}) > 1 and "slurm" not in given:
            raise UsageError(f"--env {named[0]} and --env {named[1]} choose different GPUs; give one")


@lazy_dataclass(frozen=True)
class LeaseRequest:
    """What a job wants of a host."""

    gpus: int
    chosen: str | None = None
    """The value of the user's own variable, whose GPUs it leases instead."""


def lease_request(spec: LaunchSpec, ranks: int, facts: Facts) -> LeaseRequest | None:
    """What a job wants of a host; None for nothing.

    Without `--gpus` a job gets a GPU for each rank, as far as there are some.
    """
    chosen = own_choice(spec)
    if chosen is not None:
        gpus, chosen = 0, chosen if chosen.strip() not in {"", "-1"} and facts.devices else None
    else:
        named = {None: min(ranks, facts.devices), ALL_GPUS: facts.devices}
        asked = spec.of(LeaseOptions).gpus
        gpus = named.get(asked, asked) or 0
    if not (gpus or chosen):
        return None
    return LeaseRequest(gpus, chosen)


def own_choice(spec: LaunchSpec) -> str | None:
    """The value of the user's own CUDA_VISIBLE_DEVICES or its like (--env), if there is one."""
    env = dict(spec.env)
    return next((env[name] for name in CHOOSING if name in env), None)


def visible(spec: LaunchSpec, lease: Lease) -> dict[str, str]:
    """The variables that show the GPUs of a lease to the ranks, in the order of their local ranks.

    By numbers in the order of nvidia-smi, which programs expect. By UUID where a number may name another
    device: with MIG, or in an order that the user chose.
    """
    if not lease.got:
        return {}
    names, numbers = VARIABLES.get(lease.kind, ()), [str(device.index) for device in lease.got]
    if not {*names}.isdisjoint(dict(spec.env)):
        # The user's numbers are those of nvidia-smi, by which they were leased.
        return {ORDER: BY_BUS} if lease.kind == "nvidia" and ORDER not in dict(spec.env) else {}
    if lease.kind != "nvidia":
        return {name: ",".join(numbers) for name in names[:1]}
    (name,) = names
    if lease.mig or dict(spec.env).get(ORDER, BY_BUS) != BY_BUS:
        return {name: ",".join(device.name for device in lease.got)}
    return {name: ",".join(numbers), ORDER: BY_BUS}


def impossible(asked: LeaseRequest, lease: Lease) -> HostError | None:
    """The error of a host that can never grant it."""
    if lease.all >= asked.gpus:
        return None
    has = count(lease.all, "GPU") if lease.all else "no GPU"
    text = f"it has {has}, and the job wants {asked.gpus}"
    return HostError("gpu.few", text, "lower --gpus, or leave the host out with --exclude")


def refused(asked: LeaseRequest, lease: Lease, now: float) -> HostError:
    """The error of a host whose GPUs others have."""
    wanted = asked.gpus or len(lease.got) + len(lease.taken)
    text = f"{count(wanted, 'GPU')} wanted, {len(lease.got)} free"
    remedy = "wait for them with --wait, or see muster free"
    return HostError("gpu.leased", f"{text}: {holders(lease.taken, now)}", remedy)


def holders(devices: Sequence[Device], now: float) -> str:
    """`GPUs 0-3: job JOB of alice for 2 h 10 min; GPU 5: process 812 python of bob`."""
    groups: dict[str, list[int]] = {}
    for device in devices:
        groups.setdefault(held_by(device, now), []).append(device.index)
    shown = [f"GPU{'s' * (len(numbers) > 1)} {ranges(numbers)}: {text}" for text, numbers in groups.items()]
    more = f"; and {len(shown) - MOST_HOLDERS} more" if len(shown) > MOST_HOLDERS else ""
    return "; ".join(shown[:MOST_HOLDERS]) + more


def held_by(device: Device, now: float) -> str:
    """`job JOB of alice for 2 h 10 min`."""
    who = f"job {device.job}" if device.job else device.process
    of = f" of {device.user}" if device.user else ""
    since = f" for {duration(max(0.0, now - device.since))}" if device.since else ""
    return harmless(f"{who}{of}{since}")
