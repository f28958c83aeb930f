"""The behaviour of six other launchers in the same faults, measured as docs/faults.md describes."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("mpirun", "torchrun", "DeepSpeed", "Colossal-AI", "accelerate", "torchrunx")
PEERS: Mapping[str, tuple[str, ...]] = {
    "raise": ("1.1 s", "never, 4 left", "never, 4 left", "never, 4 left", "", "never"),
    "exit": ("1.2 s, status 3 or 1", "1.5 s, status 1", "2.3 s", "2.6 s, status 1", "", "4.9 s, status 1"),
    "kill": ("0.8 s", "1.3 s, status 1", "2.8 s, status 247", "1.7 s, status 1", "", "5.9 s, status 1"),
    "abort": ("0.9 s", "", "", "", "", ""),
    "daemon": ("0.1 s, status 0", "", "", "", "", ""),
    "mpirun": ("0.7 s", "", "", "", "", ""),
    "sigint": ("0.9 s", "6 left", "5.2 s", "never", "6 left", "3.1 s"),
    "sigterm": ("0.9 s", "6 left", "2.8 s", "6 left", "6 left", "0.2 s, a helper left"),
    "sighup": ("1.0 s", "", "", "", "", ""),
    "sigkill": ("none left", "6 left", "6 left", "6 left", "6 left", "a helper left"),
    "power": (
        *("0.1 s, status 0 or 255", "4.5 s, names victims", "2.3 s", "5.2 s, names nobody"),
        *("4.2 s, names victims", "2.6 s"),
    ),
    "shutdown": ("0.3 s, status 0", "", "", "", "", ""),
    "frozen": ("never", "", "", "", "", ""),
    "cut-off": ("never", "", "", "", "", ""),
    "stopped": ("never", "", "", "", "", ""),
    "refused": ("0.1 s", "", "never", "never", "", ""),
    "silent": ("never, no message", "", "never", "never", "", "18.1 s, agents left"),
    "exit-hangs": ("sometimes without end (ompi#12064)", "", "", "", "", ""),
}
