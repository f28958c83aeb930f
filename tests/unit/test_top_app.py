"""`muster top` as its user has it: keys, at 80 x 24 and with 256 hosts, in textual's own test driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.errors import MusterError
from muster.deploy.view.top import app as app_module
from muster.deploy.view.top.app import Table, TopApp
from muster.deploy.view.top.history import TopHistory, TopRecord, Unreached
from tests.unit.records import START, job, records

pytestmark = pytest.mark.slow  # several processes a test

GOLDEN = Path(__file__).parents[1] / "golden"
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


def try_out(source: Recorded, session: Session, stacks: Callable[[], str] | None = None) -> None:
    """Run a session in a terminal of 80 x 24; it begins when the first records are drawn."""

    async def run() -> None:
        app = TopApp(source, TopHistory(), stacks)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: len(table(app).lines) > 1)
            await session(pilot, app)

    asyncio.run(run())


async def until(pilot: Any, look: Callable[[], bool]) -> None:
    for _ in range(2000):
        if look():
            return
        await pilot.pause(0.02)
    raise AssertionError("it is never seen")


def table(app: TopApp) -> Table:
    return app.query_one(Table)


def drawn(app: TopApp) -> list[str]:
    """What the terminal shows of the table."""
    height = table(app).size.height
    return ["".join(segment.text for segment in table(app).render_line(y)).rstrip() for y in range(height)]


def snapshot(app: TopApp) -> str:
    """What the terminal shows, with head and keys, as text."""
    strips = app.screen._compositor.render_strips()
    return "".join(f"{''.join(segment.text for segment in strip).rstrip()}\n" for strip in strips)


@pytest.mark.parametrize(
    ("name", "hosts", "keys"),
    [
        ("top-80x24-hosts", 40, ["end"]),
        ("top-80x24-ranks", 3, ["tab", "down"]),
        ("top-80x24-filter", 3, ["slash", *"node2"]),
    ],
)
def test_the_whole_screen_is_as_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, hosts: int, keys: list[str]
) -> None:
    """After a change: look at what this test has written, then copy it over the golden file."""
    monkeypatch.setattr(app_module, "time", SimpleNamespace(monotonic=lambda: 0.0, time=lambda: START + 20))

    golden = (GOLDEN / f"{name}.txt").read_text()

    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press(*keys)
        with contextlib.suppress(AssertionError):
            await until(pilot, lambda: snapshot(app) == golden)
        (tmp_path / f"{name}.txt").write_text(snapshot(app))
        assert snapshot(app) == golden, tmp_path / f"{name}.txt"

    try_out(Recorded(hosts), session)


def test_256_hosts_are_scrolled_and_the_columns_keep_their_names() -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        assert drawn(app)[0].startswith("host") and drawn(app)[1].startswith("node0 ")
        await pilot.press("end")
        await until(pilot, lambda: drawn(app)[-1].startswith("node255 "))
        assert drawn(app)[0].startswith("host")
        assert all(len(line) <= 80 for line in drawn(app))
        await pilot.press("home")
        await until(pilot, lambda: drawn(app)[1].startswith("node0 "))

    try_out(Recorded(256, turns=2), session)


def test_keys_lead_from_hosts_to_ranks_to_a_rank_in_full_and_back() -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press("tab", "down", "down")
        assert table(app).key == "rank 1"
        await pilot.press("enter")
        assert str(table(app).lines[0]) == "rank 1 on node0"
        assert "rank 1 has had 109 batches" in drawn(app)
        await pilot.press("escape")
        assert len(table(app).lines) == 7
        await pilot.press("tab", "down", "enter")
        assert str(table(app).lines[0]).startswith("node")

    try_out(Recorded(3), session)


def test_a_filter_and_an_order_are_asked_for_by_a_key() -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press("slash", *"node2", "enter")
        await until(pilot, lambda: [line.key for line in table(app).lines[1:]] == ["node2"])
        await pilot.press("escape", "o")
        assert app.view.sort == "name" and len(table(app).lines) == 4

    try_out(Recorded(3), session)


def test_the_stacks_are_shown_and_an_error_of_theirs_too() -> None:
    answers = iter(["ranks 0-3:\n    wait (train.py:7)\n"])

    def stacks() -> str:
        for answer in answers:
            return answer
        raise MusterError("node1: ptrace is forbidden")

    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press("s")
        await until(pilot, lambda: "    wait (train.py:7)" in drawn(app))
        await pilot.press("escape")
        assert drawn(app)[0].startswith("host")
        await pilot.press("s")
        await until(pilot, lambda: "node1: ptrace is forbidden" in drawn(app))

    try_out(Recorded(2), session, stacks)


def test_a_host_that_is_lost_is_shown_while_the_screen_is_open() -> None:
    source = Recorded(2)

    async def session(pilot: Any, app: TopApp) -> None:
        source.later = [Unreached("node1", "the connection broke")]
        await until(pilot, lambda: drawn(app)[2].endswith("the connection broke"))

    try_out(source, session)


def test_a_place_that_does_not_answer_is_said_and_asked_again() -> None:
    source = Recorded(2)

    async def session(pilot: Any, app: TopApp) -> None:
        source.error = MusterError("node1: no answer within 30 s")
        await until(pilot, lambda: app.problem == "node1: no answer within 30 s")
        source.error = None
        await until(pilot, lambda: app.problem == "")

    try_out(source, session)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends_by_a_key(key: str) -> None:
    async def session(pilot: Any, app: TopApp) -> None:
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running or app._exit)

    try_out(Recorded(1), session)
