"""What an error of the operating system is called for people."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from muster.deploy.core.agent.main import Agent
from muster.deploy.core.wire import os_errors
from muster.deploy.core.wire.durable import write_atomically


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
def test_an_error_says_what_is_wrong_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, says: str, remedy: str
) -> None:
    monkeypatch.setattr(os_errors, "_user", lambda: "ml")
    text = os_errors.explain(error(number))
    assert says in text
    assert remedy in text
    assert "Errno" not in text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("inodes", [0, 5])
def test_a_full_or_closed_file_system_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, inodes: int
) -> None:
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


def test_a_number_that_no_machine_has_is_an_error_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
