"""How far a playbook is, and which hosts it waits for: a live line on a terminal, lines elsewhere."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from ansible.plugins.callback import CallbackBase

from muster.deploy.core.text.live_line import live_line
from muster.deploy.core.text.progress import Progress
from muster.deploy.core.waits import Wait

DOCUMENTATION = """
name: progress
type: notification
short_description: Shows how far a playbook is
description:
  - Counts the tasks of all plays, in their order. Included tasks count with the task that includes them.
  - Names the hosts on which a task is not done yet.
requirements: []
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Ansible finds a callback plugin by this name."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._book = ""
        self._positions: dict[str, int] = {}
        self._done, self._tenth, self._wait = 0, 0, Wait()
        self._is_terminal = sys.stdout.isatty()
        self._progress = Progress(self._line, stream=sys.stdout if self._is_terminal else sys.stderr)

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Count the tasks, and begin to show progress."""
        self._book = Path(str(playbook._file_name)).stem  # it has no public name
        for play in playbook.get_plays():
            for task in _tasks(play.compile()):
                self._positions.setdefault(task._uuid, len(self._positions))  # the same in every copy
        # Ansible holds its lock when it writes and when it forks a worker. So does the live line's thread.
        live_line.lock = self._display._lock
        sys.stdout, sys.stderr = (cast("TextIO", _Above(stream)) for stream in (sys.stdout, sys.stderr))
        self._progress.__enter__()
        atexit.register(self._progress.close)  # a Ctrl-C leaves no line behind

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """A task begins: those before it are done."""
        self._wait = Wait(task.get_name())
        self._done = max(self._positions.get(task._uuid, 0), self._done)
        total = len(self._positions)
        if not self._is_terminal and total and self._done * 10 // total > self._tenth:
            self._tenth = self._done * 10 // total
            percent = 100 * self._done // total
            self._display.display(f"{self._book}: {percent} %, {self._done} of {total} tasks", stderr=True)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """The task begins on a host."""
        self._wait.also_for(str(host))

    def _ended(self, result: Any, **_: Any) -> None:
        self._wait.over_for(str(result._host))

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_skipped = v2_runner_on_unreachable = _ended

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end, of a playbook that failed too."""
        self._progress.close()

    def _line(self) -> str:
        tasks = f"{self._book}: {self._done} of {len(self._positions)} tasks"
        return ", ".join(filter(None, (tasks, str(self._wait))))


class _Above:
    """A stream whose text goes above the live line, with Ansible's colours."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text in place of the live line."""
        with live_line.lock:
            live_line.remove(text, is_terminal=self._stream.isatty())
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _tasks(blocks: list[Any]) -> Iterator[Any]:
    """The tasks of blocks, in the order in which they run; those of a rescue run only after an error."""
    for block in blocks:
        for entry in [*block.block, *block.always]:
            if hasattr(entry, "block"):
                yield from _tasks([entry])
            elif not getattr(entry, "implicit", False):
                yield entry
