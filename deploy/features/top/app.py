"""Draws the screen of `muster top` with textual, and changes the view by keys."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from ...core.errors import MusterError
from .head import Moment
from .screen_lines import View
from .sources import JobSource
from .top_history import TopHistory, TopRecord
from .top_screen import Frame, frame

LOOK_SECONDS = 1.0
# The terminal's own colours, which suit its background. Red is for alarms alone.
STYLES = {
    "plain": Style(),
    "dim": Style(dim=True),
    "title": Style(bold=True),
    "heading": Style(bold=True, underline=True),
    "focus": Style(bold=True, reverse=True),
    "cursor": Style(reverse=True),
    "mark": Style(color="green"),
    "odd": Style(color="magenta"),
    "bad": Style(color="red", bold=True),
}


class TopScreen(Widget, can_focus=True):
    """The lines of a frame."""

    frame = Frame([])

    def render_line(self, y: int) -> Strip:
        if y >= len(self.frame.lines):
            return Strip.blank(self.size.width)
        strip = Strip(Segment(span.text, STYLES[span.style]) for span in self.frame.lines[y].spans)
        return strip.crop_extend(0, self.size.width, None)


class TopApp(App[None]):
    """The application: the screen and the keys."""

    CSS = """
    * { background: ansi_default; color: ansi_default; }
    TopScreen { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("tab,shift+tab", "other", priority=True),
        Binding("enter", "choose"),
        Binding("escape", "leave", priority=True),
        *(Binding(key, f"move({by})") for key, by in (("up,k", -1), ("down,j", 1))),
        *(Binding(key, f"page({by})") for key, by in (("pageup", -1), ("pagedown,space", 1))),
        Binding("home,g", "move(-1000000)"),
        Binding("end,G", "move(1000000)"),
    ]

    def __init__(self, source: JobSource, history: TopHistory) -> None:
        super().__init__(ansi_color=True)
        self.source, self.history = source, history
        self.view = View()
        self._ended = threading.Event()

    def compose(self) -> ComposeResult:
        """The one part of the screen."""
        yield TopScreen()

    def on_mount(self) -> None:
        """Begin to look. SIGTERM acts as `q`: an exception would leave threads and the terminal mode."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.query_one(TopScreen).focus()
        self.run_worker(self._look, thread=True, exit_on_error=False)
        self.set_interval(LOOK_SECONDS, self.draw)

    def on_unmount(self) -> None:
        """Stop looking."""
        self._ended.set()

    def on_resize(self) -> None:
        """Draw the screen in its new size, after its widgets have got theirs."""
        self.call_after_refresh(self.draw)

    def _look(self) -> None:
        """In a thread: add records until the end. After an error the source is asked again."""
        look = self.source.begin
        while not self._ended.is_set():
            try:
                records = [*look()]
                problem, look = "", self.source.look
            except MusterError as error:
                records, problem = [], str(error)
            if self._ended.is_set():
                return
            self.call_from_thread(self.add, records, problem)
            self._ended.wait(LOOK_SECONDS)

    def add(self, records: list[TopRecord], problem: str = "") -> None:
        now = time.monotonic()
        for record in records:
            self.history.take(record, now)
        self.history.problem = problem
        self.draw()

    def draw(self) -> None:
        """Draw the screen from the records so far."""
        if not self.query(TopScreen):
            return  # textual removes the widgets before it ends the worker and the timer
        screen = self.query_one(TopScreen)
        moment = Moment(time.monotonic(), time.time())
        screen.frame = frame(self.history, self.view, moment, self.size.width, self.size.height)
        self.view = replace(self.view, first=screen.frame.first)
        screen.refresh()

    # -- keys --

    def action_other(self) -> None:
        """Show the ranks, or the hosts."""
        self._change(ranks=not self.view.ranks, chosen="", cursor="", first=0)

    def action_choose(self) -> None:
        """Show the host or rank under the cursor in full."""
        if keys := self.query_one(TopScreen).frame.keys:
            self._change(chosen=self.view.cursor if self.view.cursor in keys else keys[0], first=0)

    def action_leave(self) -> None:
        """Leave the full view; then the cursor."""
        cursor = self.view.cursor if self.view.chosen else ""
        self._change(chosen="", cursor=cursor, first=0)

    def action_page(self, by: int) -> None:
        self.action_move(by * self.query_one(TopScreen).frame.page)

    def action_move(self, by: int) -> None:
        """Move the cursor, or a text without cursor."""
        keys = [*self.query_one(TopScreen).frame.keys]
        if not keys:
            self._change(first=max(0, self.view.first + by))
            return
        # The first move only shows the cursor, on the first line.
        at = keys.index(self.view.cursor) if self.view.cursor in keys else min(0, -by) if abs(by) == 1 else 0
        self._change(cursor=keys[max(0, min(len(keys) - 1, at + by))])

    def _change(self, **fields: object) -> None:
        self.view = replace(self.view, **fields)  # type: ignore[arg-type]
        self.draw()
