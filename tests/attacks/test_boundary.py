"""What a host may say: answers and reports with wrong types, huge values, paths, escapes; and floods."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from queue import Empty
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pytest

from muster.deploy.core.connect import channel, reports, silence
from muster.deploy.core.connect.bootstrap import GREETING
from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.inbox import LEAST_SHARE, MOST_BYTES, MOST_OVERTAKING, Inbox
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import KINDS, Event, LauncherLine, Lost, RankOutput, StopAsked
from muster.deploy.core.connect.requests import FACTS, MISSING, OPEN_PORT, STORE, TIME, Request
from muster.deploy.core.content.messages import BLOB_SERVE
from muster.deploy.core.decode import AtMost, Between, Like, Parsed
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job.events import LauncherOutput, Output
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.features.adhoc.messages import FILE
from muster.deploy.features.check.messages import HEALTH
from tests.attacks.honest import ANSWERS, REPORTS
from tests.subjects import request_modules
from tests.unit.plans import make_plan

SUBJECTS = [import_module(name) for name in request_modules()]
REQUESTS = {
    request.name: request
    for subject in SUBJECTS
    for request in vars(subject).values()
    if isinstance(request, Request)
}
EVIL: tuple[Any, ...] = (
    *(None, True, -1, 1 << 70, 10**400, 1e308, float("nan")),
    *("", "x" * (1 << 20), "\ud800", "\x1b]0;owned\x07", "../../.bashrc", "/etc/passwd", "node1\nnode2"),
    *([], {}, [[]], [{}], {"": {}}, [None] * (1 << 19)),
)


NEEDED: dict[Any, Any] = {int: Between, float: Between, str: (AtMost, Like)}


def spoiled(value: Any) -> Iterator[Any]:
    """The value with each of its parts, and itself, replaced by each evil thing, or left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {other: inside for other, inside in value.items() if other != name}
            yield from ({**value, name: evil} for evil in spoiled(inner))
            yield from ({**value, evil: inner} for evil in ("../x", "\x1b[2J", "9" * 5000))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], evil, *value[place + 1 :]] for evil in spoiled(inner))
        yield value * 300_000
    yield from EVIL


def bounded(kind: Any, path: str, bounds: tuple[Any, ...] = ()) -> Iterator[str]:
    """The parts of a type that have no bound."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from bounded(args[0], path, args[1:])
    elif origin in (Union, types.UnionType):
        for arg in args:
            yield from bounded(arg, path)
    elif dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        for name, hint in get_type_hints(kind, include_extras=True).items():
            yield from bounded(hint, f"{path}.{name}")
    elif origin in (tuple, Mapping):
        fixed = origin is tuple and args[-1] is not Ellipsis
        if not fixed and not any(isinstance(bound, AtMost) for bound in bounds):
            yield path
        for arg in (arg for arg in args if arg is not Ellipsis):
            yield from bounded(arg, f"{path}[]")
    elif not any(isinstance(bound, NEEDED.get(kind, object)) for bound in bounds or (None,)):
        yield path
    elif origin is not Literal and kind not in {*NEEDED, bool, bytes, type(None)}:
        yield f"{path} is a {kind}"


def test_every_part_of_an_answer_and_of_a_report_has_a_bound() -> None:
    answers = {word: request.answer for word, request in REQUESTS.items()}
    assert REQUESTS and KINDS
    assert [part for kinds in (answers, KINDS) for word in kinds for part in bounded(kinds[word], word)] == []


def test_the_bounds_of_which_these_tests_know_are_all() -> None:
    assert bool(list(bounded(str, "x"))) and not list(bounded(Annotated[str, Like("x"), Parsed(str)], "x"))


def bad_refusals(
    word: str, honest: dict[str, Any], read: Callable[[dict[str, Any]], object]
) -> Iterator[str]:
    """The spoiled messages, of this word, that are refused other than in a few harmless words."""
    read(honest)
    for said in spoiled(honest):
        if isinstance(said, dict):
            try:
                read(said)
            except Exception as error:  # noqa: BLE001  # each that is no short ValueError is listed
                text = str(error)
                if not isinstance(error, ValueError) or len(text) >= 400 or "\x1b" in text:
                    yield f"{word}: {error!r:.400}"


def test_an_answer_is_what_it_should_be_or_refused_in_a_few_words() -> None:
    assert [
        bad
        for word, request in REQUESTS.items()
        for bad in bad_refusals(word, ANSWERS.get(word, {}), request.read)
    ] == []


def test_a_report_is_what_it_should_be_or_refused_in_a_few_words() -> None:
    assert [
        bad
        for word in KINDS
        for bad in bad_refusals(word, {"event": word, **REPORTS[word]}, reports.of_frame)
    ] == []


@pytest.mark.parametrize(
    ("request_", "lie"),
    [
        (FACTS, {"home": "relative"}),
        (FACTS, {"home": "/home/a\nb"}),
        (FACTS, {"python": "three"}),
        (FACTS, {"addresses": ["not an address"]}),
        (FACTS, {"interfaces": {"10.0.0.1": "../../x"}}),
        (FACTS, {"cores": 0}),
        (FACTS, {"mpi": "5.0.7; reboot"}),
        (OPEN_PORT, {"port": 0}),
        (OPEN_PORT, {"port": True}),
        (HEALTH, {"folders": []}),
        (MISSING, {"missing": ["../../etc/passwd"]}),
        (FILE, {"length": 1 << 70}),
        (FILE, {"entries": [["x", "socket", 0, 0, "", ""]]}),
        (BLOB_SERVE, {"have": {"../x": 1}}),
    ],
)
def test_an_odd_path_number_or_command_is_refused(request_: Request[Any], lie: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"its answer to {request_.name}: {next(iter(lie))}"):
        request_.read({**ANSWERS[request_.name], **lie})


@pytest.mark.parametrize("code", [256, -65, 1.0, "0", None, True])
def test_an_end_has_a_code_that_a_process_can_have(code: Any) -> None:
    for word in ("ran", "rank-end", "command-end", "shell-end", "daemon-end"):
        with pytest.raises(ValueError, match=f"the report {word}: code"):
            reports.of_frame({"event": word, **REPORTS[word], "code": code})


# ---- the connection ---------------------------------------------------------------------------------------


class Pipe:
    """A host that says something and then nothing, until it is closed."""

    remote = True

    def __init__(self, *said: bytes) -> None:
        self.closed, self._asked = threading.Event(), threading.Event()
        self._said, self._greeting = io.BytesIO(b"".join(said)), GREETING
        self.reader, self.writer = self, cast(Any, self)
        self.written = 0

    def write(self, content: bytes, /) -> None:
        self.written += 1
        if self.written > 1:  # after its modules
            self._asked.set()

    def flush(self) -> None:
        pass

    def readline(self, size: int = -1, /) -> bytes:
        if self._greeting:
            greeting, self._greeting = self._greeting, b""
            return greeting
        self._asked.wait(60)
        return self._said.readline(size) or self._wait()

    def read(self, size: int, /) -> bytes:
        return self._said.read(size) or self._wait()

    def _wait(self) -> bytes:
        self.closed.wait(60)
        return b""

    def last_words(self, printed: str = "") -> LostError:
        return LostError("gone")

    def close(self, *, patient: bool = True) -> None:
        self.closed.set()


def line(**frame: Any) -> bytes:
    return json.dumps(frame).encode() + b"\n"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (line(reply=5, time=1.0), "an answer without a request"),
        (line(reply=True, time=1.0), "an answer without a request"),
        (line(reply=0, time="x", steady=1.0), "its answer to time: time: expected float, got 'x'"),
        (line(reply=0, error=[1]), "an error that is not text"),
        (line(reply=0, time=1.0, size=1), "a payload of 1 bytes"),
        (line(event="output", size=1), "a payload of 1 bytes"),
        (line(event="ran", code=0, cut=0, timed_out=False, size=1 << 21), "a payload of 2097152 bytes"),
        (line(event="rm -rf"), "an unknown report 'rm -rf'"),
        (line(event="stop-asked", by=7), "the report stop-asked: by: expected str, got 7"),
        (line(x=[[]] * 600_000), "a line of more than 524288 values"),
        (b"[" * 100_000 + b"\n", "values nested too deep"),
        (b"\xff\xfe\0garbage\n", "a line that is no text"),
        (b'{"reply": 0,}\n', "a line that is no JSON, from character 13 on"),
        (b'{"reply": 0, "time": NaN}\n', "NaN is not a JSON number"),
    ],
)
def test_what_no_agent_sends_ends_the_connection_with_its_reason(said: bytes, why: str) -> None:
    pipe, inbox = Pipe(said), Inbox()
    talk = Channel("node1", pipe, inbox)
    with pytest.raises(LostError) as caught:
        talk.ask(TIME, seconds=60)
    assert str(caught.value).startswith(f"node1: protocol error: {why}")
    assert caught.value.kind == "host.protocol-error"
    report = inbox.get(timeout=60).report
    assert isinstance(report, Lost)
    assert pipe.closed.wait(60), "an agent of ours ends its job when its connection is closed"
    with pytest.raises(LostError, match="protocol error"):
        talk.ask(TIME, seconds=60)


def test_an_error_of_a_host_is_one_line() -> None:
    error = "no room\n        why: rank 0 on node2 is slow\r\n\n\x1b[31mFAILED\u2028x"
    with pytest.raises(MusterError) as caught:
        Channel("node1", Pipe(line(reply=0, error=error)), Inbox()).ask(TIME, seconds=60)
    assert str(caught.value) == "node1: no room; why: rank 0 on node2 is slow; FAILED; x"


def test_an_error_of_a_host_is_said_once_with_its_name() -> None:
    with pytest.raises(MusterError) as caught:
        Channel("node1", Pipe(line(reply=0, error="no room")), Inbox()).ask(TIME, seconds=60)
    assert (str(caught.value), caught.value.host, caught.value.reason) == (
        *("node1: no room", "node1"),
        "no room",
    )


def test_a_host_that_says_nothing_is_not_waited_for_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(channel, "SILENCE_SECONDS", 0.2)
    talk = Channel("node1", Pipe(), Inbox())
    with pytest.raises(LostError, match=r"node1: silent for \d s: frozen, or cut off"):
        talk.ask(STORE, seconds=600)


class Working(Pipe):
    """A host that says now and then that it is at work, and answers in the end."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def readline(self, size: int = -1, /) -> bytes:
        if self._greeting:
            return super().readline(size)
        self._asked.wait(60)
        self._left -= 1
        threading.Event().wait(0.2)
        return line(event="busy") if self._left > 0 else line(reply=0) if self._left == 0 else self._wait()


def test_a_host_that_is_at_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 5.0)
    inbox = Inbox()
    Channel("node1", Working(30), inbox).ask(STORE, seconds=600)  # 6 s of work
    with pytest.raises(Empty):
        inbox.get(timeout=0.0)


class Stuck(Working):
    """A host that only says that it is at work. `works`: the processor time that it has taken rises."""

    def __init__(self, times: int, *, works: bool) -> None:
        super().__init__(times)
        self._works = works

    def readline(self, size: int = -1, /) -> bytes:
        said = super().readline(size)
        return line(event="busy", cpu=1000 - self._left if self._works else 7.5) if b"busy" in said else said


LONG = dataclasses.replace(STORE, stuck_after=1.0)


def test_a_host_that_only_says_that_it_works_is_given_up() -> None:
    talk = Channel("node1", Stuck(1 << 30, works=False), Inbox())
    with pytest.raises(LostError, match=r"node1: its agent has been busy for .* and did nothing"):
        talk.ask(LONG, seconds=600)


def test_a_host_that_works_is_waited_for_and_so_is_any_answer_that_does_not_take_long() -> None:
    Channel("node1", Stuck(10, works=True), Inbox()).ask(LONG, seconds=600)  # 2 s of work
    Channel("node1", Stuck(10, works=False), Inbox()).ask(STORE, seconds=600)


class Flooding(Pipe):
    """A host whose ranks print without an end. It answers each request, or never."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self._answers, self._asked_for, self._replies, self._lines = answers, 0, 0, 0

    def write(self, content: bytes, /) -> None:
        super().write(content)
        self._asked_for += content.startswith(b'{"do"')

    def readline(self, size: int = -1, /) -> bytes:
        if self._greeting:
            return super().readline(size)
        self._asked.wait(60)
        if self.closed.is_set():
            return b""
        self._lines += 1
        if self._answers and self._replies < self._asked_for and self._lines % 100 == 0:
            self._replies += 1
            return line(reply=self._replies - 1)
        return line(event="output", rank=0, stream="out", text="x\n" * 5000)


def take_all(inbox: Inbox, until: threading.Event) -> None:
    while not until.is_set():
        with contextlib.suppress(Empty):
            inbox.get(timeout=0.1)


@pytest.mark.parametrize("answers", [False, True])
def test_who_prints_without_an_end_has_to_answer_too(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    monkeypatch.setattr(channel, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(channel, "MOST_UNANSWERED", 1 << 22)
    pipe, inbox, over = Flooding(answers=answers), Inbox(), threading.Event()
    talk = Channel("node1", pipe, inbox)
    threading.Thread(target=take_all, args=(inbox, over), daemon=True).start()
    if answers:
        for _ in range(20):  # 1 MiB for each, 20 MiB in all
            talk.post(STORE).result(60)
    else:
        with pytest.raises(LostError, match="protocol error: 4 MiB of reports, and no answer for"):
            talk.post(STORE).result(60)
    over.set()
    pipe.close()


# ---- the queue of reports ---------------------------------------------------------------------------------


def test_a_host_that_floods_waits_and_the_others_do_not() -> None:
    inbox = Inbox(hosts=2)
    share = MOST_BYTES // 2
    inbox.put(Event("liar", LauncherLine("err", "x"), share))
    waits = threading.Thread(
        target=inbox.put, args=(Event("liar", LauncherLine("err", "y"), 1),), daemon=True
    )
    waits.start()
    inbox.put(Event("honest", StopAsked("me"), 1))
    assert len(inbox) == 2
    assert inbox.get(timeout=60).host == "liar"  # that makes room
    waits.join(60)
    assert [inbox.get(timeout=60).host for _ in range(2)] == ["honest", "liar"]


def test_the_end_of_a_connection_is_heard_of_however_full_its_share_is() -> None:
    inbox = Inbox(hosts=1)
    inbox.put(Event("liar", LauncherLine("err", "x"), MOST_BYTES))
    inbox.put(Event("liar", Lost(LostError("gone"))), wait=False)
    assert len(inbox) == 2


def test_the_end_of_a_rank_overtakes_what_ranks_have_printed_and_no_line_another() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.put(Event("node1", RankOutput(0, "out", f"{number}\n"), 1 << 16))
    inbox.put(Event("node1", StopAsked("me"), 1))
    got = [inbox.get(timeout=60).report for _ in range(4)]
    assert got == [StopAsked("me"), *(RankOutput(0, "out", f"{number}\n") for number in range(3))]


def test_who_reports_without_an_end_keeps_no_line_of_others_for_ever() -> None:
    inbox = Inbox(hosts=2)
    inbox.put(Event("honest", RankOutput(0, "out", "line\n"), 8))
    for _ in range(2 * MOST_OVERTAKING):
        inbox.put(Event("liar", LauncherLine("err", "x"), 1))
    hosts = [inbox.get(timeout=60).host for _ in range(MOST_OVERTAKING + 1)]
    assert hosts[-1] == "honest"


def test_many_hosts_have_room_enough_for_a_line() -> None:
    inbox = Inbox(hosts=4096)
    inbox.put(Event("node1", LauncherLine("err", "x"), LEAST_SHARE - 1024))
    inbox.put(Event("node1", LauncherLine("err", "x"), 1))


# ---- this machine's disk ----------------------------------------------------------------------------------


def test_each_log_of_a_run_stays_within_its_bound(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job", max_log=4000)
    folder.begin(make_plan("node1 slots=2\nnode2"))
    for _ in range(1000):
        folder.on_event(Output(0, "node1", "out", "x" * 100 + "\n"))
    folder.on_event(LauncherOutput("node1", "x" * 1000))
    folder.on_event(Output(1, "node1", "err", "why it failed\n"))
    folder.on_event(Output(2, "node2", "err", "why it failed\n"))
    assert all(path.stat().st_size < 4200 for path in folder.logs.iterdir())
    flooded = folder.log_of(0, "node1", "out").read_text()
    assert flooded.endswith("x\n\n[cut here, node1 has all of it: --max-log 4000]\n")
    assert folder.log_of(1, "node1", "err").read_text() == "why it failed\n"
    assert folder.log_of(2, "node2", "err").read_text() == "why it failed\n"


def test_a_text_that_stands_for_no_bytes_is_kept_all_the_same(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job")
    folder.begin(make_plan("node1"))
    folder.say("host \ud800 failed")
    assert (folder.logs / "driver.log").read_text() == "host ? failed\n"
