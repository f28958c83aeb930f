"""`muster top` as its user has it: keys, at 80 x 24 and with 256 hosts, in textual's own test driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from muster.deploy.core.errors import MusterError
from muster.deploy.features.top.app import TopApp, TopScreen
from muster.deploy.features.top.top_history import TopHistory, TopRecord
from tests.unit.records import host_sample, job, records

pytestmark = pytest.mark.slow  # several processes a test

Session = Callable[[Any, TopApp], Awaitable[None]]


class Recorded:
    """A source that gives the same records once."""

    def __init__(self, hosts: int, **options: int) -> None:
        self.given = [job(hosts, hosts * options.get("ranks_each", 2)), *records(hosts, **options)]
        self.error: MusterError | None = None
        self.later: list[TopRecord] = []

    def begin(self) -> Iterator[TopRecord]:
        yield from self.given

    def look(self) -> Iterator[TopRecord]:
        if self.error:
            raise self.error
        later, self.later = self.later, []
        yield from later


def try_out(source: Recorded, session: Session) -> None:
    """Run a session in a terminal of 80 x 24; it begins when the first records are drawn."""

    async def run() -> None:
        app = TopApp(cast(Any, source), TopHistory())
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: bool(keys(app)))
            await session(pilot, app)

    asyncio.run(run())


async def until(pilot: Any, look: Callable[[], bool]) -> None:
    for _ in range(2000):
        if look():
            return
        await pilot.pause(0.02)
    raise AssertionError("it is never seen")


def keys(app: TopApp) -> list[str]:
    return [*app.query_one(TopScreen).frame.keys]


def drawn(app: TopApp) -> list[str]:
    """What the terminal shows."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def under_cursor(app: TopApp) -> list[str]:
    """The lines that are drawn in reverse, except headings."""
    strips = app.screen._compositor.render_strips()
    return [
        "".join(segment.text for segment in strip).rstrip()
        for strip in strips
        if any(one.style and one.style.reverse and not one.style.bold and one.text.strip() for one in strip)
    ]


def test_300_hosts_are_scrolled_by_keys_and_the_columns_keep_their_names() -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        await until(pilot, lambda: drawn(app)[2].startswith("host ") and drawn(app)[3].startswith("node0 "))
        await pilot.press("end")
        await until(
            pilot, lambda: under_cursor(app)[0].startswith("node299 ") and drawn(app)[2].startswith("host ")
        )
        await pilot.press("pageup", "up")
        await until(pilot, lambda: under_cursor(app)[0].startswith("node28"))
        await pilot.press("home")
        await until(pilot, lambda: under_cursor(app)[0].startswith("node0 "))
        assert len(drawn(app)) == 24 and all(len(line) <= 80 for line in drawn(app))

    try_out(Recorded(300, turns=2), session)


def test_the_screen_is_drawn_again_in_another_size() -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        assert not any(" rank host" in line for line in drawn(app))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: len(drawn(app)) == 40 and any(" rank host" in line for line in drawn(app)))
        assert drawn(app)[-1].startswith("q quit")

    try_out(Recorded(30), session)


def test_keys_lead_from_hosts_to_ranks_to_a_rank_in_full_and_back() -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press("tab", "down", "down")
        await until(pilot, lambda: app.view.cursor == "rank 1")
        await pilot.press("enter")
        await until(pilot, lambda: "rank 1 on node0" in drawn(app))
        assert "rank 1 has had 109 batches" in drawn(app)
        await pilot.press("escape")
        await until(pilot, lambda: any(line.startswith(" rank host") for line in drawn(app)))
        await pilot.press("tab", "down", "enter")
        await until(pilot, lambda: any(line.startswith("memory ") for line in drawn(app)))

    try_out(Recorded(3), session)


def test_a_source_that_fails_is_an_alarm_until_it_answers() -> None:
    source = Recorded(2)

    async def session(pilot: Any, app: TopApp) -> None:
        source.error = MusterError("node1: no answer within 30 s")
        await until(pilot, lambda: drawn(app)[0] == "! node1: no answer within 30 s")
        source.error = None
        await until(pilot, lambda: not drawn(app)[0].startswith("!"))

    try_out(source, session)


def test_red_is_for_alarms_alone_and_every_colour_is_the_terminals_own() -> None:
    source = Recorded(3)
    source.given.append(replace(host_sample(1, 9), memory=250 << 30))

    async def session(pilot: Any, app: TopApp) -> None:
        await until(pilot, lambda: drawn(app)[0].startswith("!"))
        segments = [one for strip in app.screen._compositor.render_strips() for one in strip if one.style]
        colours = {one.style.color.name for one in segments if one.style and one.style.color}
        assert colours <= {"red", "green", "magenta", "default"}
        red = [
            one.text for one in segments if one.style and one.style.color and one.style.color.name == "red"
        ]
        assert red and all("node1" in text or "memory" in text for text in red), red
        assert all(not one.style.bgcolor or one.style.bgcolor.is_default for one in segments if one.style)

    try_out(source, session)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends_by_a_key(key: str) -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running or app._exit)

    try_out(Recorded(1), session)
