"""Waits as the torchrun of the next attempt, with its imports done (`--preload`).

The agent starts it, and sends the arguments and the environment when the attempt begins
(features/preload/on_host/preload.py). Until then only imports have run, in a thread of the lowest priority:
only a thread can have one that the process does not keep. Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import socket
import sys
import threading
from importlib import import_module
from typing import Any

LOWEST = 19  # nice(2)
MODULE = "torch.distributed.run"
SCORE = "/proc/self/oom_score_adj"
MOST_REQUEST = 1 << 20


def wait(control: socket.socket) -> None:
    """Import torchrun, wait for its arguments, and run it; ends the process if none come."""
    with open(SCORE, "r+", encoding="ascii") as file:
        score = file.read()
        file.write("1000")  # the OOM killer takes this process first: the job runs without it
    errors: list[str] = []
    thread = threading.Thread(target=_import, args=(errors,))
    thread.start()
    thread.join()
    with contextlib.suppress(OSError):
        control.send(json.dumps({"why": errors[0] if errors else ""}).encode())
    request: dict[str, Any] = json.loads(control.recv(MOST_REQUEST) or b"{}")
    control.close()
    if errors or not request:
        os._exit(1)
    with open(SCORE, "w", encoding="ascii") as file:
        file.write(score)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    option, program, *arguments = request["argv"]
    sys.argv = [option, *arguments]
    # As Python would have it: `-m` finds modules in the folder of its start, `-c` in the current one.
    sys.path[0] = os.getcwd() if option == "-m" else ""
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  # of the plan


def _import(errors: list[str]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
    try:
        import_module(MODULE)
        del sys.modules[MODULE]  # run_module executes it, and warns if it is loaded
    except BaseException as error:  # noqa: BLE001  # also SystemExit
        errors.append(repr(error)[:500])
