"""The GPUs and NPUs of this host that a job can lease, and the processes that use them without a lease."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ....core.agent.gpus import Machine, amd_gpus, ascend_npus, device_files, processes, query, split
from ....core.agent.processes import peek
from ....core.agent.running_jobs import GPUS
from ....core.wire.users import name_of

FIELDS = "index,uuid,mig.mode.current"
SMI_SECONDS = 10.0
SERVER = "nvidia-cuda-mps"  # it serves the processes of others, and uses every GPU


class Device(NamedTuple):
    """A GPU or NPU. `name`: that of its lock; `user`, `why`: of a process that uses it without a lease."""

    number: int
    name: str
    mig: bool = False
    parts: tuple[str, ...] = ()
    """The UUIDs of its MIG instances."""
    pids: tuple[int, ...] = ()


class Devices(NamedTuple):
    """The devices of a host, all of one kind: nvidia, amd, ascend; `none` without any."""

    kind: str = "none"
    listed: Sequence[Device] = ()


def look() -> Devices:
    """The devices; OSError if nvidia-smi does not list the GPUs that the driver has."""
    machine = Machine(seconds=SMI_SECONDS)
    if machine.names(GPUS) or device_files(machine):
        return Devices("nvidia", _nvidia(machine))
    if found := amd_gpus(machine):
        return Devices("amd", [Device(index, f"amd-{number}") for index, number in enumerate(found)])
    found = ascend_npus(machine)
    return Devices(
        "ascend" if found else "none", [Device(int(number), f"ascend-{number}") for number in found]
    )


def _nvidia(machine: Machine) -> list[Device]:
    smi = machine.program("nvidia-smi")
    if smi is None:
        raise OSError("there is no nvidia-smi, which names the GPUs")
    answer = machine.run(smi, *query("gpu", FIELDS))
    rows = [values for line in answer.text.splitlines() if (values := split(line, FIELDS))]
    if not rows:
        raise OSError(f"nvidia-smi: {answer.error or answer.text.strip()[-300:] or 'it found no GPU'}")
    parts = _mig_parts(machine.run(smi, "-L").text) if any(row[2] == "Enabled" for row in rows) else {}
    running = processes(machine, smi, "gpu_uuid")
    return [
        Device(int(index), uuid, mig == "Enabled", parts.get(uuid, ()), tuple(running.get(uuid, ())))
        for index, uuid, mig in rows
        if re.fullmatch(r"[\w-]{1,80}", uuid)
    ]


def _mig_parts(text: str) -> dict[str, tuple[str, ...]]:
    """The UUIDs of MIG instances by that of their GPU, in the answer of `nvidia-smi -L`."""
    parts: dict[str, tuple[str, ...]] = {}
    gpu = ""
    for kind, uuid in re.findall(r"\(UUID: (GPU|MIG)-([\w/-]+)\)", text):
        if kind == "GPU":
            gpu = f"GPU-{uuid}"
        else:
            parts[gpu] = (*parts.get(gpu, ()), f"MIG-{uuid}")
    return parts


def foreign(device: Device, own: set[int]) -> tuple[str, str]:
    """The user and the name of a process that uses a device, other than the `own` ones; empty without one."""
    for pid in device.pids:
        name = peek(f"/proc/{pid}/comm", 64).strip()
        if pid in own or name == SERVER:
            continue
        try:
            user = name_of(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            user = ""  # it is in another container, or has just ended
        return user, f"process {pid} {name}".strip()
    return "", ""


def chosen(value: str, devices: Sequence[Device]) -> list[Device]:
    """The devices that a CUDA_VISIBLE_DEVICES names: numbers, UUIDs or their beginnings, MIG instances.

    As for CUDA, the first unknown one ends the list.
    """
    found: list[Device] = []
    for word in filter(None, map(str.strip, value.split(","))):
        device = next((each for each in devices if _is_named(word, each)), None)
        if device is None:
            break
        if device not in found:
            found.append(device)
    return found


def _is_named(word: str, device: Device) -> bool:
    if word.isdigit():
        return int(word) == device.number
    return device.name.startswith(word) or word in device.parts or word.startswith(f"MIG-{device.name}/")
