"""Actions that are due at a certain time."""

from __future__ import annotations

import time
from collections.abc import Callable

Action = Callable[[], None]


class Deadlines:
    """Actions and the times when they are due. An action that is set already keeps its time."""

    def __init__(self) -> None:
        self._due: dict[Action, float] = {}

    def after(self, seconds: float, action: Action) -> None:
        """Do an action after a number of seconds, unless it is set already."""
        self._due.setdefault(action, time.monotonic() + seconds)

    def are_due(self) -> bool:
        """Whether any action is due."""
        return self.seconds_left() <= 0

    def do_what_is_due(self) -> None:
        """Do each action that is due, once."""
        now = time.monotonic()
        for action in [action for action, due in self._due.items() if due <= now]:
            del self._due[action]
            action()

    def seconds_left(self) -> float:
        """Seconds until the next action is due; an hour if there is no action."""
        return max(0.0, min(self._due.values(), default=time.monotonic() + 3600.0) - time.monotonic())
