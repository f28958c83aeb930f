"""A stand-in for the module pynvml: NVML on the machine of tests/golden/gpus/one-h100.txt."""

from __future__ import annotations

from types import SimpleNamespace

nvmlMemory_v2 = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 1  # noqa: N816 - NVML's names
NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1


class NVMLError(Exception):
    """The error of a function that a GPU does not have."""


ANSWERS = {
    "Count": 1,
    "HandleByIndex": 0,
    "Name": "NVIDIA H100 80GB HBM3",
    "UUID": "GPU-5a8c1e70-0000-4c00-8000-000000000001",
    "PciInfo": SimpleNamespace(busId="00000000:00:05.0"),
    "MemoryInfo": SimpleNamespace(total=81559 << 20, used=4 << 20),
    "TotalEccErrors": 0,
    "PersistenceMode": 1,
    "RemappedRows": (0, 0, 0, 0),
    "ComputeRunningProcesses": [],
    "Temperature": 44,
    "ClockInfo": 1755,
    "MaxClockInfo": 1980,
    "EnforcedPowerLimit": 700000,
}


def nvmlInit() -> None:  # noqa: N802
    """Begin."""


def nvmlShutdown() -> None:  # noqa: N802
    """End."""


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    """The version of the driver."""
    return "580.95.05"


def __getattr__(name: str) -> object:
    """A function that answers as the H100 would; one without an answer raises an NVMLError."""
    if not name.startswith("nvmlDeviceGet"):
        raise AttributeError(name)

    def answer(*_: object) -> object:
        field = name.removeprefix("nvmlDeviceGet")
        if field not in ANSWERS:
            raise NVMLError("Not Supported")
        return ANSWERS[field]

    return answer
