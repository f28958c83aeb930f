"""What a command shows of a job that it runs: features that pass the job's events on to the terminal."""

from __future__ import annotations

from ..core.job.events import Event, LauncherOutput, Output, Said, Stage
from ..core.job.feature import Feature
from ..core.text.progress import Progress
from ..core.text.screen import Screen


class OnScreen(Feature):
    """Prints the output of the ranks and the lines of the driver."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def on_event(self, event: Event) -> None:
        """Print it."""
        if isinstance(event, Output):
            self._screen.output(event.rank, event.host, event.stream, event.text)
        elif isinstance(event, LauncherOutput):
            self._screen.launcher(event.host, event.text, spawned=event.spawned)
        elif isinstance(event, Said):
            self._screen.say(event.text)


class OnProgressLine(Feature):
    """Shows the stages of the job on the line of progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_event(self, event: Event) -> None:
        """Show it."""
        if isinstance(event, Stage):
            self._progress.stage(event.show)
