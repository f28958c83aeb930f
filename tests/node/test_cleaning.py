"""What is removed of old jobs, and what never is."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from muster.deploy.core.wire.frames import Frame
from muster.deploy.core.wire.job_folders import JobFolders
from muster.deploy.core.wire.store import Store
from muster.deploy.features.clean.on_host.cleanup import FRESH_SECONDS, Cleaning
from muster.deploy.features.detach.on_host import Detaching

LONG_AGO = time.time() - 2 * FRESH_SECONDS


def make_job(home: Path, name: str, content: bytes, *, old: bool = True) -> Path:
    """A job whose code is one file of the store, and which wrote a result."""
    digest = hashlib.sha256(content).hexdigest()
    stored = Store(home / "store").path(digest)
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(content)
    folder = home / "jobs" / name
    (folder / "run" / "logs").mkdir(parents=True)
    (folder / "code.json").write_text(json.dumps([["a.py", False, digest, None]]))
    (folder / "lock.node1").touch()
    (folder / "result").write_bytes(b"x" * 1000)
    if old:
        for path in (stored, folder / "run" / "logs", folder / "run", folder):
            os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def clean(home: Path, older: float = FRESH_SECONDS, *, results: bool = False) -> Frame:
    cleaned = Cleaning(home).do_clean({"older": older, "results": results}, b"")
    assert cleaned.pop("memory").keys() >= {"files", "bytes"}  # of every job of this user
    return cleaned


def stored(home: Path) -> set[bytes]:
    return {path.read_bytes() for path in (home / "store").glob("??/*")}


def test_an_old_job_goes_with_the_contents_that_no_other_has(tmp_path: Path) -> None:
    make_job(tmp_path, "old", b"its own")
    make_job(tmp_path, "new", b"the new one's", old=False)
    found = clean(tmp_path)
    assert (found["removed"], found["kept"]) == (["old"], ["new"])
    assert found["freed"] >= 1000 + len(b"its own")
    assert stored(tmp_path) == {b"the new one's"}


@pytest.mark.parametrize("results", [False, True])
def test_nothing_is_removed_behind_a_link_in_place_of_the_code(tmp_path: Path, results: bool) -> None:
    folder, own = make_job(tmp_path, "old", b"its own"), tmp_path / "own"
    for name in (".git/config", "a.py", "a.pyc"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(b"its own")
    (folder / "out").mkdir()
    (folder / "out" / "model.pt").write_bytes(b"a result")
    (folder / "code").symlink_to(own)
    clean(tmp_path, older=-1, results=results)
    assert (folder / "out" / "model.pt").exists() != results
    assert sorted(path.name for path in own.rglob("*")) == [".git", "a.py", "a.pyc", "config"]


def test_a_content_that_another_job_has_stays(tmp_path: Path) -> None:
    make_job(tmp_path, "old", b"shared")
    make_job(tmp_path, "new", b"shared", old=False)
    clean(tmp_path)
    assert stored(tmp_path) == {b"shared"}


@pytest.mark.parametrize("lock", ["lock.node1", "run/lock.driver"])
def test_a_job_in_use_is_never_removed(tmp_path: Path, lock: str) -> None:
    folder = make_job(tmp_path, "old", b"code")
    descriptor = os.open(folder / lock, os.O_CREAT | os.O_RDWR)
    os.utime(folder / "run", (LONG_AGO, LONG_AGO))
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert clean(tmp_path)["kept"] == ["old"]
    assert stored(tmp_path) == {b"code"}
    os.close(descriptor)
    assert clean(tmp_path)["removed"] == ["old"]


def test_new_content_may_be_that_of_a_launch(tmp_path: Path) -> None:
    folder = make_job(tmp_path, "job", b"code", old=False)
    (folder / "code.json").unlink()
    clean(tmp_path, older=0)
    assert stored(tmp_path) == {b"code"}


def test_where_nothing_ever_ran_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert clean(tmp_path) == {"removed": [], "kept": [], "freed": 0, "results": []}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("metrics.jsonl", 3),
        ("metrics.jsonl", None),
        ("steps.jsonl", 2),
        ("returned/rank-1.json", 3),
        ("returned/a", None),
    ],
)
def test_a_file_that_the_driver_has_is_no_result(tmp_path: Path, name: str, size: int | None) -> None:
    """A driver that was killed has told the host nothing; and it has not all of a file that grew."""
    folder = make_job(tmp_path, "old", b"code")
    path = folder / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}\n")
    if size is not None:
        record = {"job": "old", "name": "../fetched.metrics.node1.json", "text": f'{{"out/{name}": {size}}}'}
        JobFolders(tmp_path / "jobs").do_record(record, b"")
    for each in (path.parent, folder / "out", folder / "run", folder):
        os.utime(each, (LONG_AGO, LONG_AGO))
    assert clean(tmp_path)["removed"] == (["old"] if size == 3 else [])
    assert path.exists() == (size != 3)


def test_what_a_program_wrote_stays_without_code_and_logs_until_it_is_given_up(tmp_path: Path) -> None:
    folder = make_job(tmp_path, "old", b"code")
    contents = {
        "code/a.py": b"code",
        "code/ckpt/last.pt": b"w" * 5000,
        "code/__pycache__/a.pyc": b"",
        "lib/m": b"",
    }
    contents |= {
        "out/model.pt": b"m",
        "out/steps.jsonl": b"s",
        "fetched.metrics.node1.json": b'{"out/steps.jsonl": 1}',
        "run/job.json": b"{}",
        "logs/rank.out": b"l" * 999,
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "code/kept").symlink_to(tmp_path)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(folder / "code.json")
    os.utime(folder, (LONG_AGO, LONG_AGO))
    found = clean(tmp_path)
    left = {"files": 2, "bytes": 5001, "more": False, "largest": "ckpt/last.pt"}
    assert found["results"] == [{"job": "old", "files": left}]
    assert (found["removed"], found["kept"]) == ([], ["old"])
    assert found["freed"] >= 999
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    stays = {"code/ckpt/last.pt", "out/model.pt", "out/steps.jsonl", "run/job.json", "lock.node1", "result"}
    assert files == stays | {"fetched.metrics.node1.json"}
    assert clean(tmp_path)["results"] == found["results"]
    assert clean(tmp_path, results=True)["removed"] == ["old"]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "target"),
    [("out/.cache/run1/model.pt", ""), ("code/last.pt", "epoch1.pt"), ("out/last", "best")],
)
def test_caches_in_results_and_links_in_the_job_stay(name: str, target: str, tmp_path: Path) -> None:
    folder = make_job(tmp_path, "old", b"code")
    path = folder / name
    path.parent.mkdir(parents=True)
    if target:
        path.symlink_to(target)
        (path.parent / "data").symlink_to("/etc")  # names no result
    else:
        path.write_bytes(b"w")
    for each in (folder, *folder.rglob("*")):
        os.utime(each, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    found = clean(tmp_path)
    assert [(left["job"], left["files"]["files"]) for left in found["results"]] == [("old", 1)]
    assert path.is_symlink() or path.exists()


def test_a_host_removes_what_another_moves_a_job_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path, "old", b"code")
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        monkeypatch.undo()
        target.parent.rmdir()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert clean(tmp_path)["removed"] == ["old"]


def test_hosts_that_share_a_home_may_clean_at_once(tmp_path: Path) -> None:
    names = [f"job{number:02}" for number in range(20)]
    for name in names:
        folder = make_job(tmp_path, name, b"shared")
        for number in range(30):
            (folder / "run" / str(number)).touch()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: clean(tmp_path, older=-60), range(8)))
    assert sorted(name for one in found for name in one["removed"]) == names
    assert list((tmp_path / "jobs").iterdir()) == []
    assert not (tmp_path / "gone").exists()


DRIVER = """
import json, os, signal, sys
sys.stdin.read()
if os.fork():
    os._exit(0)
print(json.dumps({"pid": os.getpid()}), flush=True)
signal.pause()
"""


def test_a_detached_jobs_folder_stays_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it makes the run, the driver may connect, install packages or fetch an image for long."""
    monkeypatch.setattr("muster.deploy.features.detach.on_host.START", DRIVER)
    reports, name = SimpleQueue[Frame](), "20261120-120000-abcd"
    Detaching(tmp_path, reports.put).do_detach({"name": name, "code": [], "job": {}}, b"")
    driver = reports.get(timeout=60.0)["pid"]
    try:
        assert clean(tmp_path, older=-1)["kept"] == [name]
    finally:
        os.kill(driver, signal.SIGKILL)
