"""Measures the GPUs of this host, by one nvidia-smi that prints them again and again (`--loop`).

To start nvidia-smi for each reading would cost a twentieth of a core and more: it initialises the driver's
library each time. Nothing is started on a host whose NVIDIA driver is not loaded.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import threading
import time
from typing import IO, Any

from ....core.agent.gpus import DRIVER, Machine, device_files, query, split
from ....core.agent.processes import die_with_agent
from ....core.wire.frames import Frame

FIELDS = (
    "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm,"
    "ecc.errors.uncorrected.volatile.total"
)
EVERY_SECONDS = 2
STALE_SECONDS = 8.0  # older readings are not reported: a failing GPU makes nvidia-smi wait
AGAIN_SECONDS = 60.0  # before an nvidia-smi that has ended is started again
LONGEST_LINE = 1 << 12
MIB = 1 << 20


class GpuMeter:
    """Keeps the newest line of each GPU. `program`: nvidia-smi, empty for none; None looks for it."""

    def __init__(self, program: str | None = None) -> None:
        self._program = find(Machine()) if program is None else program
        self._newest: dict[int, tuple[float, Frame]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._try_at = 0.0
        self._closed = False

    def read(self) -> list[Frame]:
        """The newest reading of each GPU, in the form of a sample; starts nvidia-smi if it does not run."""
        now = time.monotonic()
        if self._program and not self._closed and self._process is None and now >= self._try_at:
            self._try_at = now + AGAIN_SECONDS
            with contextlib.suppress(OSError, ValueError):
                self._start(self._program)
        newest = sorted(self._newest.items())
        return [gpu for _, (at, gpu) in newest if now - at < STALE_SECONDS]

    def close(self) -> None:
        """End nvidia-smi, and do not start it again."""
        self._closed = True
        if process := self._process:
            with contextlib.suppress(OSError):
                process.kill()

    def _start(self, program: str) -> None:
        argv = [program, *query("gpu", FIELDS), f"--loop={EVERY_SECONDS}"]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_agent,  # the child only calls prctl
        )
        threading.Thread(target=self._take, args=(self._process,), daemon=True).start()

    def _take(self, process: subprocess.Popen[bytes]) -> None:
        """Read the lines of an nvidia-smi until it ends."""
        stream: IO[bytes] | None = process.stdout
        with contextlib.suppress(OSError, ValueError):
            while stream and (line := stream.readline(LONGEST_LINE)):
                if gpu := parse(line.decode(errors="replace")):
                    self._newest[gpu["index"]] = (time.monotonic(), gpu)
        process.wait()
        self._process = None


def find(machine: Machine) -> str:
    """The path of nvidia-smi; empty if no NVIDIA driver is loaded."""
    is_driven = machine.has(DRIVER) or device_files(machine) > 0
    return (machine.program("nvidia-smi") or "") if is_driven else ""


def parse(line: str) -> Frame:
    """The GPU in one line of nvidia-smi's answer to FIELDS; {} for any other line, None for `[N/A]`."""
    values = split(line, FIELDS)
    if not values:
        return {}
    index, name, busy, used, total, power, degrees, clock, ecc = values
    share = _number(busy)
    return {
        "index": int(index),
        "name": name[:256],
        "utilisation": min(1.0, share / 100) if share is not None else None,
        "memory": _whole(used, MIB),
        "memory_total": _whole(total, MIB),
        "power": _number(power),
        "temperature": _number(degrees),
        "clock": _number(clock),
        "ecc": _whole(ecc, 1),
    }


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) and number >= 0 else None
    return None


def _whole(text: str, unit: int) -> Any:
    number = _number(text)
    return None if number is None else int(number) * unit
