"""Text for people: tables, and lines that are divided for a terminal."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from muster.deploy.core.agent.main import Agent
from muster.deploy.core.errors import HostError, UnfitError
from muster.deploy.core.text.fold import HostMessage, fold_messages
from muster.deploy.core.text.text import duration, number, percent, size, table, wrapped
from muster.deploy.core.wire import os_errors
from muster.deploy.core.wire.durable import write_atomically


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_to_the_right() -> None:
    rows = [("from", "node1", ""), ("node2", "31", "\x1b[2J")]
    assert table(rows) == ["from   node1", "node2  31     ␛[2J"]
    assert table(rows, left=1) == ["from   node1", "node2     31  ␛[2J"]
    assert table([]) == []


def test_a_line_is_divided_between_words_without_blanks_at_the_ends() -> None:
    line = "ERROR   node2: Connection refused  [ssh.port-refused]"
    assert wrapped(line, 36) == ["ERROR   node2: Connection refused", "        [ssh.port-refused]"]
    assert wrapped(line, 80) == [line]


def test_a_number_stays_with_its_unit() -> None:
    assert wrapped("node3: no answer within 10 s; look there", 26) == [
        "node3: no answer within",
        "        10 s; look there",
    ]


# -- numbers with their units, as every message, table and page shows them --


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1, "0 s"), (0, "0 s"), (0.0123, "12.3 ms"), (0.9996, "1 s"), (1.42, "1.4 s"), (59, "59 s")),
        *((59.7, "59.7 s"), (59.97, "1 min 0 s"), (200, "3 min 20 s")),
        *((7500, "2 h 5 min"), (100000, "1 d 3 h")),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1000, "1000 B"), (1 << 26, "64 MiB"), (3 << 29, "1.5 GiB"), (1 << 42, "4 TiB")],
)
def test_a_size_has_a_binary_unit(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.35124, "0.3512"), (1234.5, "1,234"), (12.3e6, "12.3M"), (1.2e-5, "1.20e-05")),
        *((math.inf, "inf"), (-2.5, "-2.5")),
    ],
)
def test_a_number_is_as_short_as_it_can_be_read(value: float, text: str) -> None:
    assert number(value) == text


def test_fewer_digits_where_a_measurement_has_no_more() -> None:
    assert [number(value, 3) for value in (0.0957, 9.414, 941.4)] == ["0.0957", "9.41", "941"]
    assert percent(0.834) == "83 %"


# -- messages of many hosts: one line for each reason --


REFUSED = "does sshd run there? (port= sets another port)"


def test_a_thousand_hosts_that_fail_for_three_reasons_are_three_lines_with_each_remedy_once() -> None:
    names = [f"node{number:04}" for number in range(1, 1001)]
    errors: dict[str, HostError | str] = {
        name: HostError("ssh.port-refused", f"cannot connect to 10.0.{n // 250}.{n % 250} port 22", REFUSED)
        for n, name in enumerate(names)
    }
    for name in names[100:300]:
        errors[name] = HostError("host.failed", f"{name}.example: it failed", f"try: ssh {name}")
    errors[names[7]] = "its Python is damaged"
    error = UnfitError(errors.items())
    assert str(error).splitlines() == [
        "node[0001-0007,0009-0100,0301-1000]: cannot connect to 10.0.0.[0-6,8-99],10.0.1.[50-249],"
        f"10.0.2.[0-249],10.0.3.[0-249] port 22; {REFUSED}",
        "node0008: its Python is damaged",
        "node[0101-0300]: node[0101-0300].example: it failed; try: ssh node0101",
    ]
    assert len(error.reasons) == 1000, "programs get an entry for each host"
    assert error.reasons[100] == ("node0101", "node0101.example: it failed; try: ssh node0101")


@pytest.mark.parametrize(
    ("texts", "folded"),
    [
        (("fe80::1 port 20123", "fe80::2 port 20124"), "fe80::[1-2] port [20123-20124]"),
        (("Open MPI 5.0.7", "Open MPI 5.0.8"), None),
        (("is on 127.0.0.1", "is on node1"), None),
        ((f"key SHA256:{'a' * 43}", f"key SHA256:{'b' * 43}"), f"key SHA256:{'a' * 43},SHA256:{'b' * 43}"),
        (("a\tnode1 of node9", "a\tnode2 of node9"), "a\tnode[1-2] of node9"),
        (("", ""), ""),
    ],
)
def test_only_what_names_the_host_itself_may_differ(texts: tuple[str, str], folded: str | None) -> None:
    messages = [HostMessage(f"node{number}", text) for number, text in enumerate(texts, 1)]
    assert fold_messages(messages) == (messages if folded is None else [HostMessage("node[1-2]", folded)])


def test_of_many_long_values_the_first_is_shown_with_the_number_of_the_others() -> None:
    keys = [f"SHA256:{letter * 43}" for letter in "abc"]
    (one,) = fold_messages(HostMessage(f"n{number}", key) for number, key in enumerate(keys))
    assert one == ("n[0-2]", f"{keys[0]} and 2 more", "")


@pytest.mark.parametrize("part", ["a:", "abcdef0:", "::", "1.2.3."])
def test_a_host_cannot_choose_a_text_that_takes_quadratic_time(part: str) -> None:
    def cost(length: int) -> float:
        text, costs = (part * length)[:length], []
        for _ in range(3):
            began = time.process_time()
            fold_messages([HostMessage("node1", text)])
            costs.append(time.process_time() - began)
        return min(costs)

    assert cost(1 << 16) < 10 * cost(1 << 14)  # 4 times if linear, 16 times if quadratic


# -- what an error of the operating system is called for people --


def error(number: int, path: str | None = "/home/ml/x") -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("number", "says", "remedy"),
    [
        (errno.ENOSPC, "no space left on the disk of /home/ml/x", "df -h /"),
        (errno.EDQUOT, "ml's disk quota for /home/ml/x is used up", "remove files"),
        (errno.EACCES, "ml may not use /home/ml/x", "namei -l /home/ml/x"),
        (errno.EROFS, "can only be read", "dmesg"),
        (errno.ENOTDIR, "a file is where /home/ml/x needs a folder", "move it away"),
        (errno.EMFILE, "open files are allowed", "ulimit -n"),
        (errno.EAGAIN, "no more processes are allowed", "ulimit -u"),
        (errno.ENOMEM, "no memory is left", "limit"),
        (errno.EDOM, f"/home/ml/x: {os.strerror(errno.EDOM)}", ""),
    ],
)
def test_an_error_has_a_remedy(monkeypatch: pytest.MonkeyPatch, number: int, says: str, remedy: str) -> None:
    monkeypatch.setattr(os_errors, "_user", lambda: "ml")
    text = os_errors.explain(error(number))
    assert says in text
    assert remedy in text
    assert "Errno" not in text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("inodes", [0, 5])
def test_a_full_file_system_is_named(monkeypatch: pytest.MonkeyPatch, number: int, inodes: int) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path in {"/", "/srv/data"})
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_favail=inodes, f_files=1000))
    for path, mount in (("/srv/data/sets/x/y", "/srv/data"), ("/home/ml/x", "/")):
        text = os_errors.explain(error(number, path))
        assert re.search(rf"(file system {mount}\)|mount {mount} for writing.*|df -[hi] {mount})$", text), (
            text
        )


def test_a_disk_without_inodes_is_not_called_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_favail=0, f_files=1000))
    text = os_errors.explain(error(errno.ENOSPC))
    assert text == ("the disk of /home/ml/x can hold no more files; remove some: df -i /")


def test_an_error_that_names_no_file_invents_none() -> None:
    assert os_errors.explain(error(errno.ENOSPC, None)) == "No space left on device"


def test_what_was_raised_as_a_sentence_is_that_sentence() -> None:
    for raised in (ValueError("it is there already"), OSError("damaged on the way")):
        assert os_errors.explain(raised) == str(raised)
    assert "no more processes are allowed" in os_errors.explain(RuntimeError("can't start new thread"))
    assert os_errors.explain(KeyError("draft")) == "KeyError: 'draft'"


def test_an_agent_says_what_could_not_be_done_and_where(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    agent = Agent(io.BytesIO(), io.BytesIO())
    request = {"do": "put_begin", "id": 1, "path": f"{blocked}/x", "name": "x", "folder": True}
    said = agent.answer(request, b"")["error"]
    assert said.startswith(f"cannot write the file: {blocked} exists already, as something else; move it")


def test_an_impossible_number_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / ".muster" / "jobs" / "j" / "run"
    run.mkdir(parents=True)
    (run / "log").touch()
    request = {"do": "read", "id": 1, "job": "j", "name": "log", "start": 0, "most": 1 << 70}
    said = Agent(io.BytesIO(), io.BytesIO()).answer(request, b"")["error"]
    assert said == "cannot read the job's run: OverflowError: cannot fit 'int' into an index-sized integer"


def test_a_write_that_finds_no_room_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, content: object, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdopen", lambda number, mode: Full())
    with pytest.raises(OSError) as full:
        write_atomically(tmp_path / "code.json", b"[]", 0o600)
    assert full.value.filename == str(tmp_path / "code.json")
    assert list(tmp_path.iterdir()) == []
