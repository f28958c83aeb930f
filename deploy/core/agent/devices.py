"""The GPUs and NPUs of this host that a job can lease, and the processes that use them without a lease."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..wire.users import name_of
from .gpus import Machine, device_files, processes, query, split
from .processes import peek
from .running_jobs import GPUS

FIELDS = "index,uuid,mig.mode.current"
AMD, FILES = "/sys/class/kfd/kfd/topology/nodes", "/dev"
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


def count_others() -> int:
    """The number of GPUs and NPUs that are not NVIDIA's, without starting a program."""
    return len(_amd(Machine())) or len(_ascend())


def look() -> Devices:
    """The devices; OSError if nvidia-smi does not list the GPUs that the driver has."""
    machine = Machine(seconds=SMI_SECONDS)
    if machine.names(GPUS) or device_files(machine):
        return Devices("nvidia", _nvidia(machine))
    if found := _amd(machine):
        return Devices("amd", found)
    found = _ascend()
    return Devices("ascend" if found else "none", found)


def _names(folder: str, pattern: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(folder) if re.fullmatch(pattern, name)]
    return []


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


def _amd(machine: Machine) -> list[Device]:
    """AMD's GPUs in the order of their driver; its processors have the number 0."""
    nodes = sorted(map(int, _names(AMD, r"\d+")))
    numbers = (machine.text(f"{AMD}/{node}/gpu_id") for node in nodes)
    return [
        Device(index, f"amd-{number}")
        for index, number in enumerate(number for number in numbers if number.isdigit() and int(number))
    ]


def _ascend() -> list[Device]:
    numbers = sorted(int(name[7:]) for name in _names(FILES, r"davinci\d+"))
    return [Device(number, f"ascend-{number}") for number in numbers]


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
