"""How far a playbook is: a bar below the output on a terminal, a line for each tenth on stderr elsewhere."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: progress
type: notification
short_description: Shows how far a playbook is
description:
  - Counts the tasks of all plays, in their order. Included tasks count with the task that includes them.
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
        self._places: dict[str, int] = {}
        self._done, self._tenth, self._bar = 0, 0, None

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Count the tasks."""
        self._book = Path(str(playbook._file_name)).stem  # it has no public name
        for play in playbook.get_plays():
            for task in _tasks(play.compile()):
                self._places.setdefault(task._uuid, len(self._places))  # the same in every copy
        if sys.stdout.isatty():
            # Without rich, Ansible's own output has to do.
            with contextlib.suppress(ImportError):
                self._bar = _bar(len(self._places))

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """A task begins: those before it are done."""
        self._show(self._places.get(task._uuid, 0), task.get_name())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end, of a playbook that failed too."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _show(self, done: int, name: str) -> None:
        self._done = max(done, self._done)
        total = len(self._places)
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=self._done, description=name[:44])
            self._bar.refresh()
        elif not sys.stdout.isatty() and total and self._done * 10 // total > self._tenth:
            self._tenth = self._done * 10 // total
            text = f"{self._book}: {100 * self._done // total} %, {self._done} of {total} tasks"
            self._display.display(text, stderr=True)


def _tasks(blocks: list[Any]) -> Iterator[Any]:
    """The tasks of blocks, in the order in which they run; those of a rescue run only after an error."""
    for block in blocks:
        for entry in [*block.block, *block.always]:
            if hasattr(entry, "block"):
                yield from _tasks([entry])
            elif not getattr(entry, "implicit", False):
                yield entry


def _bar(total: int) -> Any:
    """A bar of rich. What else is printed scrolls above it, with its line ends and colours as they are."""
    from rich import console, progress  # noqa: PLC0415  # only on a terminal

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        *(progress.BarColumn(24), progress.TaskProgressColumn(), progress.MofNCompleteColumn()),
        progress.TimeElapsedColumn(),
    )
    screen = console.Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False, emoji=False)
    # No thread: Ansible forks its workers, and a fork must not find the bar's lock taken.
    bar = progress.Progress(*columns, console=screen, transient=True, auto_refresh=False)
    bar.add_task("", total=total)
    bar.start()
    atexit.register(bar.stop)  # a Ctrl-C leaves no terminal without a cursor
    return bar
