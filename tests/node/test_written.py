"""Files that a program writes into its job's folder, beside the code, are found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.wire import written
from muster.deploy.core.wire.frames import Frame
from muster.deploy.core.wire.store import Store
from muster.deploy.features.adhoc.wire import Listings
from muster.deploy.features.written_files import on_host
from muster.deploy.features.written_files.on_host import Outputs
from tests.agents import job_in

SENT = {"train.py": b"print(1)", "results.csv": b"a,b\n", "sub/model.py": b"x = 1\n", "best.pt": b"weights"}
NONE = {"files": 0, "bytes": 0, "more": False, "largest": ""}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job with its copy of the code, as `prepare` makes it."""
    store, folder = Store(tmp_path / "store"), tmp_path / "jobs" / "job"
    rows: list[list[Any]] = [["link", False, "", "train.py"]]
    for name, content in SENT.items():
        rows.append([name, False, hashlib.sha256(content).hexdigest(), None])
        store.path(rows[-1][2]).parent.mkdir(parents=True, exist_ok=True)
        store.path(rows[-1][2]).write_bytes(content)
    store.check_out(rows, folder / "code")
    (folder / "code.json").write_text(json.dumps(rows))
    return folder


def write(path: Path, content: bytes = b"12345") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def outputs(folder: Path) -> Frame:
    work = job_in(folder.parents[1])
    work.job = {"folder": str(folder)}
    return Outputs(work).do_outputs({}, b"")


def listed(folder: Path, inner: str = "") -> list[str]:
    found = Listings().do_file({"path": str(folder), "written": inner}, b"")
    assert not found["more"]
    return sorted(entry.path for entry in found["entries"])


def test_what_was_sent_and_caches_are_no_results(job: Path) -> None:
    for name in ("__pycache__/train.cpython-312.pyc", "sub/.pytest_cache/v", "old.pyc", ".git/config"):
        write(job / "code" / name)
    (job / "code" / "checkpoints").symlink_to("/tmp")  # as --keep does, before the list of the code
    os.utime(job / "code.json", (time.time() + 60, time.time() + 60))
    os.mkfifo(job / "code" / "pipe")
    found = outputs(job)
    assert (found["beside"], found["out"]) == (NONE, NONE)
    assert listed(job) == []


def test_a_cache_in_the_folder_for_results_or_that_was_sent_is_a_result(job: Path) -> None:
    for name in ("out/.cache/run1/model.pt", "code/.cache/new"):
        write(job / name)
    assert listed(job) == ["out/.cache/run1/model.pt"]
    (job / "code.json").write_text(json.dumps([[".cache/sent", False, "ab" * 32, None]]))
    assert listed(job, ".cache/new") == ["code/.cache/new"]


def test_new_and_changed_files_are_found(job: Path) -> None:
    write(job / "code/checkpoints/last.pt", b"x" * 100)
    write(job / "code/sub/log.txt")
    write(job / "code/results.csv", b"a,b\n1,2\n")
    os.utime(job / "code/results.csv", (1, 1))  # a copy that keeps the time
    write(job / "code/best.pt", b"WEIGHTS")  # of the same size
    write(job / "out/model.pt")
    found = outputs(job)
    assert found["beside"] == {"files": 4, "bytes": 120, "more": False, "largest": "checkpoints/last.pt"}
    assert found["out"] == {"files": 1, "bytes": 5, "more": False, "largest": "model.pt"}
    beside = ["code/best.pt", "code/checkpoints/last.pt", "code/results.csv", "code/sub/log.txt"]
    assert listed(job) == [*beside, "out/model.pt"]
    assert listed(job, "checkpoints") == listed(job, "checkpoints/last.pt") == ["code/checkpoints/last.pt"]
    assert listed(job, "check") == []


def test_hosts_that_share_the_folder_give_the_same_mark(job: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert outputs(job)["folder"] == outputs(job)["folder"] != outputs(tmp_path / "other")["folder"]


def test_a_full_disk_hides_no_files(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(job / "out/model.pt")

    def fail(path: Path) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(on_host, "identity_of_folder", fail)
    found = outputs(job)
    assert (found["out"]["files"], found["folder"]) == (1, None)


@pytest.mark.parametrize(
    ("limit", "value"), [("MOST_FILES", 2), ("MOST_ENTRIES", 3), ("MOST_DEPTH", 1), ("MOST_SECONDS", 0.0)]
)
def test_a_search_has_limits(limit: str, value: float, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c/d/e/f"):
        write(job / "out" / name)
    monkeypatch.setattr(written, limit, value)
    found = outputs(job)["out"]
    assert found["more"]
    assert found["files"] < 3
    # To get or to keep files, all are found.
    assert listed(job) == ["out/a", "out/b", "out/c/d/e/f"]
    assert listed(job, "c/d") == ["out/c/d/e/f"]
