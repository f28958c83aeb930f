"""Files that a host may have written: what is read of them has a bound, and what is not read is said."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.channel import MOST_LINE, Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.requests import Request
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job import bounded
from muster.deploy.core.job.bounded import LONGEST_LINE, MOST_TEXT, Room, TooLargeError
from muster.deploy.core.wire.job_folders import MOST_BYTES, RunOutput, describe
from muster.deploy.features.adhoc import put_get as listing
from muster.deploy.features.adhoc import wire
from muster.deploy.features.adhoc.messages import Entries, FileFacts, ListedEntry
from muster.deploy.features.adhoc.put_get import facts_of
from muster.deploy.features.page import run_records as records
from muster.deploy.features.page.run_records import MOST_SAMPLES, Records, read
from tests.unit.runs import write_run

HUGE = 8 * LONGEST_LINE


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a", b"b"]),
        ([b"a", b"b\n", b"\n", b"c"], [b"ab", b"", b"c"]),
        ([b"12345678\n9\n"], [b"12345678", b"9"]),
        ([b"123456789\n9\n"], [b"", b"9"]),
        ([b"12345", b"67890", b"1", b"\n9\n"], [b"", b"9"]),
        ([b"12345", b"67890", b"12345678901\n9"], [b"", b"9"]),
        ([b"9\n123456789"], [b"9", b""]),
    ],
)
def test_a_line_that_is_too_long_is_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], lines: list[bytes]
) -> None:
    monkeypatch.setattr(bounded, "LONGEST_LINE", 8)
    assert list(bounded.lines_of(pieces)) == lines


def test_the_memory_of_values_is_known_before_they_are_made() -> None:
    assert bounded.memory_of(b"[" + b"[]," * 1000 + b"0]") >= 1000 * (56 + 8)
    with pytest.raises(TooLargeError, match="more than 1048576 values"):
        bounded.value_of(b"[" + b"{}," * (1 << 19) + b"0]")
    room = Room(10)
    assert [room.take(6), room.take(6), room.take(4), room.left] == [True, False, True, 0]


# -- the folder of a run that a host has handed over --


def said(found: Records, *words: str) -> bool:
    return any(all(word in note for word in words) for note in found.notes)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the JSON texts that are turned into values."""
    sizes: list[int] = []

    def loads(text: str | bytes, **options: Any) -> Any:
        sizes.append(len(text))
        return whole(text, **options)

    whole: Callable[..., Any] = json.loads
    monkeypatch.setattr(json, "loads", loads)
    return sizes


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "steps.jsonl", "samples.jsonl"])
def test_a_huge_line_costs_that_line_alone(tmp_path: Path, loaded: list[int], name: str) -> None:
    folder = write_run(tmp_path)
    whole = read(folder)
    line = b'{"at": 1, "type": "x", "attempt": 0, "x": "' + os.urandom(HUGE // 2).hex().encode() + b'"}\n'
    (folder / name).write_bytes(line + (folder / name).read_bytes())
    found = read(folder)
    assert [len(one) for one in (found.events, found.metrics, found.steps, found.samples)] == [
        len(one) for one in (whole.events, whole.metrics, whole.steps, whole.samples)
    ]
    assert said(found, f"{name}: 1 line is no JSON object")
    assert max(loaded) <= LONGEST_LINE


@pytest.mark.parametrize(
    "name", ["result.json", "job.json", "launch.json", "launch.restart-1.json", "verdict.txt", "plan.txt"]
)
def test_a_file_that_is_too_large_is_left_out_and_named(tmp_path: Path, loaded: list[int], name: str) -> None:
    folder = write_run(tmp_path)
    with (folder / name).open("wb") as file:
        file.write(b'{"x": 1}')
        file.truncate(MOST_TEXT + 1)
    found = read(folder)
    assert said(found, name, "has more than")
    assert not any("x" in record for record in (found.result, found.state, *found.launches))
    assert "x" not in (found.plan if name == "plan.txt" else found.verdict)[:9]
    assert found.events
    assert max(loaded) < MOST_TEXT


def test_a_file_of_many_small_values_is_not_made_into_them(tmp_path: Path, loaded: list[int]) -> None:
    folder = write_run(tmp_path)
    many = b'{"exit_status": [' + b"{}," * (1 << 20) + b"0]}"
    (folder / "result.json").write_bytes(many)
    found = read(folder)
    assert found.result == {}
    assert said(found, "result.json", "values")
    assert max(loaded) < LONGEST_LINE


def test_files_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[int]) -> None:
    monkeypatch.setattr(records, "MOST_MEMORY", 100_000)
    folder = write_run(tmp_path)
    for attempt in range(1, 20):
        (folder / f"launch.restart-{attempt}.json").write_text(json.dumps({"x": "y" * 9000}))
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n' * 5000)
    (folder / "logs" / "rank-0009@node9.out").write_text("\n" * 4000)
    found = read(folder)
    assert sum(map(len, found.launches)) < 30
    assert said(found, "launch.restart-19.json", "exceed the memory limit")
    assert said(found, "metrics.jsonl: only its first", "the memory limit is reached")
    assert said(found, "logs: ", "the memory limit is reached")


def test_samples_are_thinned_out_by_their_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path, hosts=3, seconds=600)
    whole = read(folder)
    monkeypatch.setattr(records, "MOST_SAMPLE_MEMORY", 100_000)
    found = read(folder)
    held = sum(bounded.memory_of(json.dumps(dict(sample)).encode()) for sample in found.samples)
    assert 0 < held < 110_000
    assert len(found.samples) < len(whole.samples) / 2
    assert said(found, "samples one is shown")


def test_samples_that_share_a_hash_end_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host can choose lines with any hash, and those with 0 are never thinned out."""
    monkeypatch.setattr(records, "MOST_SAMPLES", 100)
    folder = write_run(tmp_path)
    line = _with_hash_0(b'{"at": 1, "host": "node1", "x": "')
    assert zlib.crc32(line) == 0
    (folder / "samples.jsonl").write_bytes((line + b"\n") * 5000)
    found = read(folder)
    assert len(found.samples) <= 101
    assert said(found, "samples.jsonl is not a file of samples")


def _with_hash_0(start: bytes) -> bytes:
    """A line of JSON whose CRC is 0: eight letters in it are chosen bit by bit (CRC is linear)."""
    letters = bytearray(b"@" * 40)  # the last bit of each letter is free: @ or A

    def of(word: bytes) -> int:
        return zlib.crc32(start + word + b'"}')

    base = of(bytes(letters))
    rows = []
    for place in range(len(letters)):
        changed = bytearray(letters)
        changed[place] ^= 1
        rows.append((of(bytes(changed)) ^ base, 1 << place))
    wanted, chosen = base, 0
    for bit in range(32):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows.remove(pivot)
        rows = [(row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row for row in rows]
        if wanted >> bit & 1:
            wanted, chosen = wanted ^ pivot[0], chosen ^ pivot[1]
    for place in range(len(letters)):
        letters[place] ^= chosen >> place & 1
    return start + bytes(letters) + b'"}'


def test_the_bounds_are_above_what_a_large_run_has() -> None:
    """A sample of 8 ranks and 8 GPUs has about 2300 bytes and 165 values."""
    assert MOST_SAMPLES * (2300 + 165 * bounded.VALUE) < records.MOST_SAMPLE_MEMORY


# -- commands that look at all runs --


@pytest.mark.parametrize("name", ["job.json", "result.json"])
@pytest.mark.parametrize("content", [b"[" * 99_999, b" " * MOST_BYTES + b"{}", b"\xff"])
def test_a_damaged_record_hides_no_other_run(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_run(tmp_path)
    (folder / name).write_bytes(content)
    described = describe(folder)
    assert described == {} if name == "job.json" else described["state"] == "lost"


def test_an_order_of_logs_without_lines_or_with_huge_sizes_is_read_with_a_bound(tmp_path: Path) -> None:
    (tmp_path / "rank-0000@n.out").write_bytes(b"")
    os.truncate(tmp_path / "rank-0000@n.out", MOST_BYTES + 9)
    (tmp_path / "order").write_bytes(f"{1 << 40} rank-0000@n.out\n".encode())
    assert [len(text) for _, text in RunOutput(tmp_path).take()[0]] == [MOST_BYTES]
    (tmp_path / "order").write_bytes(b"-1 rank-0000@n.out\n")
    assert [text for _, text in RunOutput(tmp_path).take()[0]] == [""]
    (tmp_path / "order").write_bytes(b"0" * LONGEST_LINE + b"1 rank-0000@n.out\n")
    assert RunOutput(tmp_path).take() == ([], False)


# -- the listing of a folder on a host: page by page, and no more than this machine has room for --


ENTRY = ListedEntry("a", "file", 0o644, 0, "", "")


def test_a_folder_of_more_files_than_fit_into_one_answer_is_listed_whole(tmp_path: Path) -> None:
    count = wire.PAGE + 5
    for number in range(count):
        (tmp_path / f"{number}").touch()
    channel = Channel("node1", LocalPipe(None), Inbox())
    try:
        told = facts_of(channel, str(tmp_path), 60.0)
    finally:
        channel.close()
    assert told.entries is not None
    assert {entry.path for entry in told.entries} == {str(number) for number in range(count)}


def test_a_page_is_no_longer_than_a_line_that_the_driver_takes() -> None:
    entry = 6 * (wire.PAGE_TEXT + 4096) + wire.PAGE * (len(f'["", "folder", 511, {1 << 62}, "", ""], ') + 64)
    assert entry < MOST_LINE  # each character as \uXXXX


class Liar:
    """A host whose folder never ends."""

    def __init__(self, page: tuple[ListedEntry, ...]) -> None:
        self.page = page

    def ask(self, request: Request[Any], **words: Any) -> FileFacts | Entries:
        if request.name == "file":
            return FileFacts(0o755, entries=self.page, more=True)
        return Entries(self.page, more=True)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (
            (ENTRY,) * 100_000,
            "has more than 200000 files and folders; bring it as one file: muster run -- tar",
        ),
        (
            (ListedEntry("x" * 4096, "link", 0, 0, "", "y" * 4096),) * 1000,
            "files and folders; bring it as one file",
        ),
        ((), "its listing does not continue"),
    ],
)
def test_a_folder_without_an_end_is_not_waited_for(page: tuple[ListedEntry, ...], complaint: str) -> None:
    with pytest.raises(MusterError, match=complaint):
        facts_of(Liar(page), "out", 1.0)  # type: ignore[arg-type]
    assert listing.MOST_ENTRIES == 200_000
