"""What is to happen when a time has passed."""

from __future__ import annotations

import time
from collections.abc import Callable

Action = Callable[[], None]


class Deadlines:
    """Actions and when they are due; one that is set already keeps its time."""

    def __init__(self) -> None:
        self._due: dict[Action, float] = {}

    def after(self, seconds: float, action: Action) -> None:
        """Do this after so many seconds, unless it is due earlier already."""
        self._due.setdefault(action, time.monotonic() + seconds)

    def are_due(self) -> bool:
        """Whether the time of one has come."""
        return self.seconds_left() <= 0

    def do_what_is_due(self) -> None:
        """Each action whose time has come, once."""
        now = time.monotonic()
        for action in [action for action, due in self._due.items() if due <= now]:
            del self._due[action]
            action()

    def seconds_left(self) -> float:
        """Until the next one; an hour if there is none."""
        return max(0.0, min(self._due.values(), default=time.monotonic() + 3600.0) - time.monotonic())
