"""Sends the driver a sample of this host and its ranks every few seconds, while a job runs here.

It must never disturb the job: an error costs the sample and nothing else, and a host where sampling is dear
is sampled less often.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Mapping

from ...common.clock import steady
from ...common.frames import Frame
from ..host.gpu_meter import GpuMeter
from ..host.meter import HostMeter
from .rank_meter import RankMeter
from .training import Training

# Of the standard library, by the parts that say why a job stands still. Loaded while the ranks start: Python
# may be replaced while they run.
NEEDED_LATER = ("concurrent.futures.thread", "http.client", "mmap")
MOST_SHARE = 0.005  # of a core
MOST_SECONDS = 8.0  # between two samples: a longer silence would look like a host that is gone


class Sampler:
    """Measures in a thread of its own, until it is closed.

    `wrappers` gives the process of each rank's wrapper; `out` is the job's folder for outputs.
    """

    def __init__(
        self, wrappers: Callable[[], Mapping[int, int]], out: str, every: float, send: Callable[[Frame], None]
    ) -> None:
        self._wrappers, self._every, self._send = wrappers, every, send
        self._host, self._gpus, self._ranks = HostMeter(), GpuMeter(), RankMeter()
        self._training = Training(out)
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Send no more."""
        self._ended.set()
        self._gpus.close()

    def sample(self) -> Frame:
        """What the host and its ranks do now; rates from the second call on."""
        at = steady()
        return {
            **self._host.read(at),
            "gpus": self._gpus.read(),
            "ranks": self._ranks.read(self._wrappers(), at),
            "training": self._training.read(),
        }

    def _run(self) -> None:
        self._take()  # rates count from here
        for module in NEEDED_LATER:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        pause = self._every
        while not self._ended.wait(pause):
            began = time.thread_time()
            sample = self._take()
            if sample is not None:
                self._send({"event": "sample", "sample": sample})
            pause = max(self._every, min(MOST_SECONDS, (time.thread_time() - began) / MOST_SHARE))

    def _take(self) -> Frame | None:
        try:
            return self.sample()
        except Exception:  # noqa: BLE001  # whatever this host's /proc holds: it is only a sample
            return None
