"""Draws the screen of `muster top` with textual, and changes the view by keys."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from ...console.terminal import harmless_lines
from ...errors import MusterError
from . import screen
from .history import TopHistory, TopRecord
from .lines import SORTS, ScreenLine, Span, View
from .sources import RecordSource

LOOK_SECONDS = 1.0
STYLES = {
    "plain": Style(),
    "dim": Style(dim=True),
    "title": Style(bold=True),
    "bar": Style(color="green"),
    "spark": Style(color="cyan"),
    "odd": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
}

TakeStacks = Callable[[], str]
"""Reads the stacks of all ranks, as text; may take seconds, and may raise MusterError."""


class Table(ScrollView, can_focus=True):
    """Lines, of which only those on the screen are drawn: there may be thousands. The first one is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[ScreenLine] = []
        self.cursor = 0

    @property
    def key(self) -> str:
        """The host or rank of the line under the cursor."""
        return self.lines[self.cursor].key if self.cursor < len(self.lines) else ""

    def show(self, lines: list[ScreenLine]) -> None:
        """Show other lines; the cursor stays at its host or rank."""
        key = self.key
        self.lines = lines
        keys = [line.key for line in lines]
        self.cursor = keys.index(key) if key in keys else min(self.cursor, max(0, len(lines) - 1))
        self.virtual_size = Size(max((len(str(line)) for line in lines), default=0), len(lines))
        self.refresh()

    def on_resize(self) -> None:
        """Keep the cursor on the screen: the head grows when the first records come."""
        self.move(0)

    def move(self, by: int) -> None:
        """Move the cursor, and scroll if it would leave the screen.

        `force`: without it, textual drops a scroll before it has drawn the scroll bar.
        """
        self.cursor = max(0, min(len(self.lines) - 1, self.cursor + by))
        top, rows = self.scroll_offset.y, max(1, self.size.height - 1)
        if self.cursor <= top:
            self.scroll_to(y=max(0, self.cursor - 1), animate=False, force=True)
        elif self.cursor > top + rows - 1:
            self.scroll_to(y=self.cursor - rows + 1, animate=False, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        left, top = self.scroll_offset
        index = 0 if y == 0 else y + top
        if index >= len(self.lines):
            return Strip.blank(self.size.width)
        line = self.lines[index]
        strip = Strip([Segment(span.text, STYLES[span.style]) for span in line.spans])
        strip = strip.crop_extend(left, left + self.size.width, None)
        chosen = index == self.cursor and line.key and self.has_focus
        return strip.apply_style(Style(reverse=True)) if chosen else strip


class TopApp(App[None]):
    """The application: a head, a table, a filter, the keys."""

    CSS = """
    #head { height: auto; }
    Table { height: 1fr; }
    Input { display: none; }
    Input.open { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("tab", "other", "Hosts/ranks", priority=True),
        Binding("o", "sort", "Order"),
        Binding("slash", "filter", "Filter"),
        Binding("enter", "choose", "Full"),
        Binding("escape", "leave", "Back"),
        Binding("s", "stacks", "Stacks"),
        *(
            Binding(key, f"move({by})", show=False)
            for key, by in (("up,k", -1), ("down,j", 1), ("pageup", -20), ("pagedown", 20))
        ),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    def __init__(
        self, source: RecordSource, history: TopHistory, take_stacks: TakeStacks | None = None
    ) -> None:
        super().__init__()
        self.source, self.history, self.take_stacks = source, history, take_stacks
        self.view = View()
        self.problem = ""
        """Why the last look failed."""
        self._ended = threading.Event()
        self._stack_lines: list[ScreenLine] = []
        """Shown in place of the table."""

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Static(id="head", markup=False)
        yield Table()
        yield Input(placeholder="only lines with this text")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look. SIGTERM acts as `q`: an exception would leave threads and the terminal mode."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.query_one(Table).focus()
        self.run_worker(self._look, thread=True, exit_on_error=False)
        self.set_interval(LOOK_SECONDS, self.draw)

    def on_unmount(self) -> None:
        """Stop looking."""
        self._ended.set()

    def _look(self) -> None:
        """In a thread: add records until the end. After an error the source is asked again."""
        look = self.source.begin
        while not self._ended.is_set():
            try:
                records = [*look()]
                self.problem, look = "", self.source.look
            except MusterError as error:
                records, self.problem = [], str(error)
            if self._ended.is_set():
                return
            self.call_from_thread(self.add, records)
            self._ended.wait(LOOK_SECONDS)

    def add(self, records: list[TopRecord]) -> None:
        """Add records, and draw."""
        now = time.monotonic()
        for record in records:
            self.history.take(record, now)
        self.draw()

    def draw(self) -> None:
        """Draw the screen from the records so far."""
        if not self.query("#head"):
            return  # textual removes the widgets before it ends the worker and the timer
        now = time.monotonic()
        head = screen.head(self.history, now, time.time())
        if self.problem:
            head = [*head, ScreenLine((Span(harmless_lines(self.problem), "bad"),))]
        self.query_one("#head", Static).update(_drawn(head))
        self.query_one(Table).show(self._stack_lines or screen.body(self.history, self.view, now))

    # -- keys --

    def action_other(self) -> None:
        """Show the ranks, or the hosts."""
        self._change(ranks=not self.view.ranks, chosen="")

    def action_sort(self) -> None:
        """Sort by the next figure."""
        self._change(sort=SORTS[(SORTS.index(self.view.sort) + 1) % len(SORTS)])
        self.notify(f"sorted by {self.view.sort}", timeout=2)

    def action_choose(self) -> None:
        """Show the host or rank under the cursor in full."""
        if key := self.query_one(Table).key:
            self._change(chosen=key)

    def action_leave(self) -> None:
        """Leave the full view, or the filter."""
        self.query_one(Input).remove_class("open")
        self.query_one(Table).focus()
        self._change(chosen="", wanted=self.view.wanted if self.view.chosen or self._stack_lines else "")

    def action_filter(self) -> None:
        """Ask for the text of the filter."""
        field = self.query_one(Input)
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show only hosts and ranks with the text."""
        self._change(wanted=event.value)

    def on_input_submitted(self) -> None:
        """Keep the filter, and focus the table."""
        self.query_one(Input).remove_class("open")
        self.query_one(Table).focus()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.query_one(Table).move(by)

    def action_stacks(self) -> None:
        """Read the stacks of all ranks."""
        if self.take_stacks is None:
            self.notify("no job, so there are no stacks", severity="warning")
            return
        self.notify("reading the stacks of all ranks")
        self.run_worker(self._stacks, thread=True, exit_on_error=False)

    def _stacks(self) -> None:
        try:
            text = self.take_stacks() if self.take_stacks else ""
        except MusterError as error:
            text = str(error)
        lines = harmless_lines(text or "no rank is running").split("\n")
        self.call_from_thread(self._show_text, [ScreenLine((Span(line),)) for line in lines])

    def _show_text(self, lines: list[ScreenLine]) -> None:
        self._stack_lines = [
            ScreenLine((Span("the stacks of all ranks; Escape returns to the table", "dim"),)),
            *lines,
        ]
        self.draw()

    def _change(self, **fields: object) -> None:
        self._stack_lines = []
        self.view = replace(self.view, **fields)  # type: ignore[arg-type]
        self.draw()


def _drawn(lines: list[ScreenLine]) -> Text:
    spans = (((span.text, STYLES[span.style]) for span in line.spans) for line in lines)
    return Text("\n").join(Text.assemble(*line) for line in spans)
