"""What nvidia-smi's XML and NVML say of a GPU, in the fields and units of deploy/core/agent/gpus.py.

Muster reads neither: it asks nvidia-smi for lines of CSV. A field is None if the GPU does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

View = Mapping[str, Any]
# By how much two readings may differ that are not made at the same time; MiB and degrees Celsius.
APART = {"used": 64, "temperature": 10}


def of_xml(text: str) -> list[View]:
    """Every GPU in the output of `nvidia-smi -q -x`."""
    log = ElementTree.fromstring(text)  # noqa: S314 - of a program of this machine
    return [_of_element(index, gpu, log) for index, gpu in enumerate(log.findall("gpu"))]


def _of_element(index: int, gpu: ElementTree.Element, log: ElementTree.Element) -> View:
    def text(path: str) -> str | None:
        found = (gpu.findtext(path) or "").strip()
        return None if found in {"", "N/A", "[N/A]"} else found

    def number(path: str) -> float | None:
        return float(found.split()[0]) if (found := text(path)) else None

    persistence, mig = text("persistence_mode"), text("mig_mode/current_mig")
    broken = [number(f"ecc_errors/volatile/{name}") for name in _UNCORRECTABLE]
    pids = [
        int(each.findtext("pid") or 0) for each in gpu.iter("process_info") if each.findtext("type") == "C"
    ]
    return {
        "index": index,
        "name": text("product_name"),
        "uuid": text("uuid"),
        "driver": log.findtext("driver_version"),
        "bus": _address(gpu.get("id", "")),
        "total": number("fb_memory_usage/total"),
        "used": number("fb_memory_usage/used"),
        "ecc": sum(filter(None, broken)) if any(each is not None for each in broken) else None,
        "persistence": persistence == "Enabled" if persistence else None,
        "mig": mig == "Enabled" if mig else None,
        "remap": _remap(
            text("remapped_rows/remapped_row_pending"), text("remapped_rows/remapped_row_failure")
        ),
        "pids": sorted(pids),
        "temperature": number("temperature/gpu_temp"),
        "clock": number("clocks/sm_clock"),
    }


_UNCORRECTABLE = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
)


def of_nvml(nvml: Any) -> list[View]:
    """Every GPU of NVML; `nvml` is the module pynvml."""
    nvml.nvmlInit()
    try:
        return [_of_handle(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _of_handle(nvml: Any, index: int) -> View:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *words: Any, of: Callable[[Any], Any] = lambda answer: answer) -> Any:
        try:
            return of(getattr(nvml, f"nvmlDeviceGet{name}")(handle, *words))
        except nvml.NVMLError:  # not supported by this GPU
            return None

    memory = ask("MemoryInfo", nvml.nvmlMemory_v2)  # nvidia-smi's: without what the driver reserves
    return {
        "index": index,
        "name": ask("Name"),
        "uuid": ask("UUID"),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "bus": ask("PciInfo", of=lambda info: _address(info.busId)),
        "total": memory.total >> 20,
        "used": memory.used >> 20,
        "ecc": ask("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "persistence": ask("PersistenceMode", of=bool),
        "mig": ask("MigMode", of=lambda modes: bool(modes[0])),
        "remap": ask("RemappedRows", of=lambda rows: "failed" if rows[3] else "pending" if rows[2] else ""),
        "pids": ask("ComputeRunningProcesses", of=lambda found: sorted(each.pid for each in found)),
        "temperature": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "clock": ask("ClockInfo", nvml.NVML_CLOCK_SM),
        "clock_limit": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "power_limit": ask("EnforcedPowerLimit", of=lambda milliwatts: milliwatts / 1000),
    }


def differences(ours: View, theirs: View) -> list[str]:
    """The fields of both that differ, as `used: 4, theirs 70`."""
    both = [name for name in ours if theirs.get(name) is not None and ours[name] is not None]
    return [f"{name}: {ours[name]}, theirs {theirs[name]}" for name in both if not _alike(name, ours, theirs)]


def compared(ours: View, views: Sequence[View]) -> tuple[int, list[str]]:
    """The number of our fields that another view has too, and all differences."""
    names = {name for view in views for name in ours if view.get(name) is not None and ours[name] is not None}
    return len(names), [difference for view in views for difference in differences(ours, view)]


def _alike(name: str, ours: View, theirs: View) -> bool:
    if name in APART:
        return bool(abs(ours[name] - theirs[name]) <= APART[name])
    return bool(ours[name] == theirs[name])


def _address(text: str | bytes) -> str:
    """The kernel's `0000:4e:00.0` for `00000000:4E:00.0`."""
    domain, _, rest = (text.decode() if isinstance(text, bytes) else text).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _remap(pending: str | None, failed: str | None) -> str | None:
    if pending is None and failed is None:
        return None
    return "failed" if failed == "Yes" else "pending" if pending == "Yes" else ""
