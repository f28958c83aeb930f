"""Measures the GPUs of this host, by one nvidia-smi that prints them again and again (`--loop`).

To start nvidia-smi for each reading would cost a twentieth of a core and more: it initialises the driver's
library each time. Nothing is started on a host whose NVIDIA driver is not loaded.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import threading
import time
from typing import IO, Any

from ...common.frames import Frame
from ..processes import die_with_agent

PLACES = ("/usr/bin", "/usr/sbin", "/usr/lib/wsl/lib")
"""Where nvidia-smi is, if not on PATH."""

FIELDS = (
    "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm,"
    "ecc.errors.uncorrected.volatile.total"
)
EVERY_SECONDS = 2
STALE_SECONDS = 8.0  # what is older is not shown as if it were now: a failing GPU makes nvidia-smi wait
AGAIN_SECONDS = 60.0  # before an nvidia-smi that has ended is started again
DRIVER = "/proc/driver/nvidia/version"
LONGEST_LINE = 1 << 12
MIB = 1 << 20


class GpuMeter:
    """Keeps the newest line of each GPU. `program`: nvidia-smi, empty for none; None looks for it."""

    def __init__(self, program: str | None = None) -> None:
        self._program = find() if program is None else program
        self._newest: dict[int, tuple[float, Frame]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._try_at = 0.0
        self._closed = False

    def read(self) -> list[Frame]:
        """What is known of each GPU now, in the form of a sample; starts nvidia-smi if it is not there."""
        now = time.monotonic()
        if self._program and not self._closed and self._process is None and now >= self._try_at:
            self._try_at = now + AGAIN_SECONDS
            with contextlib.suppress(OSError, ValueError):
                self._start(self._program)
        newest = sorted(self._newest.items())
        return [gpu for _, (at, gpu) in newest if now - at < STALE_SECONDS]

    def close(self) -> None:
        """End nvidia-smi, and start it no more."""
        self._closed = True
        if process := self._process:
            with contextlib.suppress(OSError):
                process.kill()

    def _start(self, program: str) -> None:
        argv = [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", f"--loop={EVERY_SECONDS}"]
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


def find() -> str:
    """Where nvidia-smi is; nothing where no GPU is driven."""
    if not os.path.exists(DRIVER):
        return ""
    places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *PLACES]
    return shutil.which("nvidia-smi", path=os.pathsep.join(places)) or ""


def parse(line: str) -> Frame:
    """The GPU in one line of nvidia-smi's answer to FIELDS; {} for any other line, None for `[N/A]`."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != FIELDS.count(",") + 1 or not words[0].isdigit():
        return {}
    index, name, busy, used, total, power, degrees, clock, ecc = words
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


def _number(word: str) -> float | None:
    with contextlib.suppress(ValueError):
        number = float(word)
        return number if math.isfinite(number) and number >= 0 else None
    return None


def _whole(word: str, unit: int) -> Any:
    number = _number(word)
    return None if number is None else int(number) * unit
