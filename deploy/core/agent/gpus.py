"""The GPUs of a host and what they depend on, from the PCI bus to nvidia-smi. It only reads.

The agent imports it, also for the samples of a job (gpu_meter.py) and the GPUs of running jobs
(running_jobs.py), and Ansible's role `gpu` runs the same file as a program (`python3 - ROOT`). So it imports
nothing of Muster. A root other than `/` is a folder with files and programs of another machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

# A failing GPU can make nvidia-smi wait forever: limits for one program, and for all together.
SMI_SECONDS, ALL_SECONDS = 10.0, 25.0
# The folders of nvidia-smi, if it is not on PATH; the last is that of hosts for containers, such as Google's.
SMI_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/lib/wsl/lib", "/usr/local/nvidia/bin")
GPU_FIELDS = (
    "index,memory.used,memory.total,ecc.errors.uncorrected.volatile.total,uuid,driver_version,"
    "pci.bus_id,persistence_mode,mig.mode.current"
)
AMD = "/sys/class/kfd/kfd/topology/nodes"
DRIVER = "/proc/driver/nvidia/version"
REMAP_FIELDS = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure"
# Linux 5.12 brought dma-buf to RDMA, and NVIDIA's open modules export GPU memory to it.
DMABUF_KERNEL, DMABUF_DRIVER = (5, 12), (515,)


class ProgramOutput(NamedTuple):
    """The output of a program, and its error; None if it succeeded."""

    text: str
    error: str | None


class Machine:
    """Files and programs below a root. `seconds`: the limit for all programs together."""

    def __init__(self, root: str = "/", seconds: float = ALL_SECONDS) -> None:
        self.root = root.rstrip("/")
        self._end = time.monotonic() + seconds

    def text(self, path: str) -> str:
        """A file's text without surrounding space; empty where it is missing."""
        try:
            return Path(self.root + path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """The entries of a folder; none if it is missing."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError:
            return []

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.exists(self.root + path)

    def link(self, path: str) -> str:
        """The last part of a link's target; empty without a link."""
        try:
            return os.path.basename(os.readlink(self.root + path))
        except OSError:
            return ""

    def program(self, name: str) -> str | None:
        folders = (*os.environ.get("PATH", os.defpath).split(os.pathsep), *SMI_FOLDERS)
        return shutil.which(name, path=os.pathsep.join(self.root + folder for folder in folders if folder))

    def run(self, *argv: str) -> ProgramOutput:
        """The output of a program, in the time that is left."""
        seconds = max(0.0, min(SMI_SECONDS, self._end - time.monotonic()))
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return ProgramOutput("", f"it timed out after {seconds:.1f} seconds")
        except OSError as error:
            return ProgramOutput("", f"{error.strerror or error}")
        return ProgramOutput(
            done.stdout.decode(errors="replace"), None if done.returncode == 0 else "it failed"
        )


def survey(root: str = "/") -> dict[str, Any]:
    """`gpus` as nvidia-smi lists them, `gpu_error` if it omits some, `gpu_host`: what they depend on."""
    machine = Machine(root)
    host = gpu_host(machine)
    is_driven = host["module"] is not None or host["devices"] > 0
    gpus, error = examine_gpus(machine, is_driven=is_driven, is_wsl=host["wsl"])
    mismatch = re.search(r"NVML library version: ([\d.]+)", error or "")
    host["libraries"] = mismatch.group(1) if mismatch else None
    return {"gpus": gpus, "gpu_error": error, "gpu_host": host}


# -- around the GPUs --


def gpu_host(machine: Machine) -> dict[str, Any]:
    """The parts of a machine that its GPUs depend on; it needs no driver."""
    functions = pci_functions(machine)
    cards = [
        {"address": address, "device": device, "driver": bound(machine, address)}
        for address, device, kind in functions
        if kind.startswith("0x03")
    ]
    switches = sum(kind.startswith("0x0680") for _, _, kind in functions)
    loaded = machine.text(DRIVER)
    version = module_version(machine, loaded)
    is_wsl = "microsoft" in machine.text("/proc/version").lower() and machine.has("/dev/dxg")
    manager, manager_version = fabric_manager(machine) if switches else ("unknown", None)
    return {
        "cards": cards,
        "devices": device_files(machine),
        "switches": switches,
        "architecture": machine.text("/proc/sys/kernel/arch") or os.uname().machine,
        "container": any(map(machine.has, ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"))),
        "wsl": is_wsl,
        "module": version,
        "open_module": "Open Kernel Module" in loaded,
        "fabric_manager": manager,
        "fabric_manager_version": manager_version,
        "rdma": bool(machine.names("/sys/class/infiniband")),
        "peer_memory": peer_memory(machine, version, is_open="Open Kernel Module" in loaded),
        "toolkit": machine.program("nvidia-ctk") is not None,
    }


def device_files(machine: Machine) -> int:
    """The number of device files of GPUs. A sandbox, such as gVisor, has these and no /proc/driver/nvidia."""
    return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in machine.names("/dev"))


def amd_gpus(machine: Machine) -> list[str]:
    """The numbers of AMD's GPUs in the order of their driver; its processors have the number 0."""
    nodes = sorted((name for name in machine.names(AMD) if name.isdigit()), key=int)
    numbers = (machine.text(f"{AMD}/{node}/gpu_id") for node in nodes)
    return [number for number in numbers if number.isdigit() and int(number)]


def ascend_npus(machine: Machine) -> list[str]:
    """The numbers of Ascend's NPUs."""
    names = (name for name in machine.names("/dev") if re.fullmatch(r"davinci\d+", name))
    return sorted((name[7:] for name in names), key=int)


def pci_functions(machine: Machine) -> list[tuple[str, str, str]]:
    """(address, device, class) of NVIDIA's PCI functions: vendor 10de."""
    functions = []
    for address in machine.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{address}"
        if machine.text(f"{folder}/vendor") == "0x10de":
            functions.append(
                (address.lower(), machine.text(f"{folder}/device"), machine.text(f"{folder}/class"))
            )
    return functions


def bound(machine: Machine, address: str) -> str:
    """The kernel's driver of a PCI function: nvidia, nouveau, vfio-pci; empty without one."""
    return machine.link(f"/sys/bus/pci/devices/{address}/driver")


def module_version(machine: Machine, loaded: str) -> str | None:
    """The version of the kernel module that is loaded: `580.95.05`."""
    match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\b", loaded)
    return match.group(1) if match else machine.text("/sys/module/nvidia/version") or None


def fabric_manager(machine: Machine) -> tuple[str, str | None]:
    """`running`, `stopped`, `missing`, or `unknown` without systemd; and the Fabric Manager's version."""
    program, systemctl = machine.program("nv-fabricmanager"), machine.program("systemctl")
    version = re.search(r"(\d+(?:\.\d+)+)", machine.run(program, "--version").text) if program else None
    if not systemctl or not machine.has("/run/systemd/system"):
        return "unknown", version.group(1) if version else None
    answer = machine.run(systemctl, "show", "--property=LoadState,ActiveState", "nvidia-fabricmanager").text
    is_active, is_loaded = "ActiveState=active" in answer, "LoadState=loaded" in answer
    state = "running" if is_active else "stopped" if is_loaded else "missing"
    return state, version.group(1) if version else None


def peer_memory(machine: Machine, version: str | None, *, is_open: bool) -> str:
    """The access of RDMA devices to GPU memory: `nvidia-peermem`, `dma-buf`, or `none`."""
    if machine.has("/sys/module/nvidia_peermem"):
        return "nvidia-peermem"
    kernel, driver = numbers(machine.text("/proc/sys/kernel/osrelease")), numbers(version or "")
    return "dma-buf" if is_open and kernel >= DMABUF_KERNEL and driver >= DMABUF_DRIVER else "none"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: (6, 8, 0) for `6.8.0-60-generic`."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()


# -- nvidia-smi --


def examine_gpus(
    machine: Machine, *, is_driven: bool, is_wsl: bool = False
) -> tuple[list[dict[str, Any]], str | None]:
    """The state of every GPU that answers, and nvidia-smi's error for the others."""
    smi = machine.program("nvidia-smi")
    if smi is None or not (is_driven or is_wsl):  # an image may have nvidia-smi; it needs a driver
        return [], "there is no nvidia-smi" if is_driven else None
    answer = machine.run(smi, *query("gpu", GPU_FIELDS))
    gpus, other = parse_gpus(answer.text)
    if answer.error:
        other = other or [answer.error]
    if not gpus:
        return [], f"nvidia-smi: {' '.join(other)[-1000:] or 'it found no GPU'}"
    running = processes(machine, smi, "gpu_uuid")
    remap = parse_remap(machine.run(smi, *query("remapped-rows", REMAP_FIELDS)).text)
    parts = mig_instances(machine.run(smi, "-L").text) if any(gpu["mig"] for gpu in gpus) else {}
    for gpu in gpus:
        gpu["pids"] = running.get(gpu["uuid"], [])
        gpu["remap"] = remap.get(gpu["bus"], "")
        gpu["instances"] = parts.get(gpu["uuid"], 0)
    return gpus, f"nvidia-smi: {' '.join(other)[-1000:]}" if other else None


def query(subject: str, fields: str) -> tuple[str, str]:
    """The arguments of nvidia-smi for a line of `fields` of each `gpu`, `compute-apps` or `remapped-rows`."""
    return (f"--query-{subject}={fields}", "--format=csv,noheader,nounits")


def split(line: str, fields: str) -> list[str]:
    """The values in a line about a GPU, whose number comes first; none for any other line of nvidia-smi."""
    values = [value.strip() for value in line.split(",")]
    return values if len(values) == fields.count(",") + 1 and values[0].isdigit() else []


def parse_gpus(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The GPUs in nvidia-smi's answer to GPU_FIELDS, and its other lines. In MiB; `[N/A]` counts as 0."""
    gpus, other = [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        values = split(line, GPU_FIELDS)
        if not values:
            other.append(line)
            continue
        index, used, total, ecc, uuid, driver, bus, persistence, mig = values
        texts = {"index": index, "used": used, "total": total, "ecc": ecc}
        gpu: dict[str, Any] = {name: int(text) if text.isdigit() else 0 for name, text in texts.items()}
        gpu |= {"uuid": uuid, "driver": driver, "bus": pci_address(bus), "mig": mig == "Enabled"}
        gpu["persistence"] = {"Enabled": True, "Disabled": False}.get(persistence)
        gpus.append(gpu)
    return gpus, other


def pci_address(text: str) -> str:
    """The kernel's `0000:4e:00.0` for nvidia-smi's `00000000:4E:00.0`; empty for any other text."""
    match = re.fullmatch(r"([0-9a-f]{4,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.lower())
    return f"{int(match[1], 16):04x}{match[2]}" if match else ""


def processes(machine: Machine, smi: str, name: str) -> dict[str, list[int]]:
    """The processes on each GPU, by its `gpu_uuid` or `gpu_bus_id`."""
    pids: dict[str, list[int]] = {}
    for line in machine.run(smi, *query("compute-apps", f"{name},pid")).text.strip().splitlines():
        gpu, _, pid = line.partition(",")
        if pid.strip().isdigit():
            pids.setdefault(gpu.strip(), []).append(int(pid))
    return pids


def parse_remap(text: str) -> dict[str, str]:
    """`failed` or `pending` by a GPU's address, where spare rows are to replace rows of its memory."""
    states = {}
    for line in text.strip().splitlines():
        fields = [field.strip().lower() for field in line.split(",")]
        if len(fields) == 3 and (address := pci_address(fields[0])):
            pending, failed = (field in {"1", "yes"} for field in fields[1:])
            states[address] = "failed" if failed else "pending" if pending else ""
    return states


def mig_instances(text: str) -> dict[str, int]:
    """The number of MIG instances of each GPU, by its UUID, in the answer of `nvidia-smi -L`."""
    counts: dict[str, int] = {}
    gpu = ""
    for line in text.splitlines():
        if match := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line):
            gpu = match.group(1)
        elif re.match(r"\s+MIG ", line):
            counts[gpu] = counts.get(gpu, 0) + 1
    return counts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(survey(*sys.argv[1:])))
