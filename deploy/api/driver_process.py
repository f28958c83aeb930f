"""The process of a command that a Python program started (process.py).

    python -c ... REQUEST ANSWER      two file descriptors

The command runs here as from a shell: signals, output and the locks of a job belong to a process. The program
keeps the request open; if it is gone, the command ends as after SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import IO, Any

from ..cli.command import Exit, Source
from ..cli.commands import load
from ..core.text.terminal import harmless_streams
from ..core.text.text import status_of

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command of the request, answer how it ended, and exit with its status."""
    for descriptor in (numbers := [*map(int, sys.argv[1:3])]):
        os.set_inheritable(descriptor, False)
    requests, answers = os.fdopen(numbers[0]), os.fdopen(numbers[1], "w")
    try:
        request = json.loads(requests.readline())
        threading.Thread(target=_end_with, args=(requests,), daemon=True).start()
        with harmless_streams():
            status, text = _run(request)
            sys.stdout.flush()
    except KeyboardInterrupt:
        status, text = INTERRUPTED, "interrupted"
    except BrokenPipeError:  # the program is gone
        os._exit(1)
    answers.write(json.dumps({"status": status, "text": text}))
    answers.close()
    sys.exit(status_of(status))


def _run(request: dict[str, Any]) -> tuple[int, str]:
    command = load(request["command"])
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in request["values"].items()
    }
    sources = tuple(Source(*source) for source in request["sources"])
    try:
        command.run(values, sources=sources, **request["others"])
    except Exit as end:
        return end.code, end.text
    return 0, ""


def _end_with(requests: IO[str]) -> None:
    """End the command when the program that started it is gone."""
    requests.read()
    os.kill(os.getpid(), signal.SIGTERM)
