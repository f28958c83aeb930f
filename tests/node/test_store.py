"""Code on a node: contents by hash, copies for jobs, and what a sweep of old jobs leaves alone."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.wire import store, written
from muster.deploy.core.wire.durable import write_atomically
from muster.deploy.core.wire.frames import Frame
from muster.deploy.core.wire.store import DamagedError, Store, sweep_old_jobs
from muster.deploy.features.adhoc.wire import Listings
from muster.deploy.features.written_files import on_host
from muster.deploy.features.written_files.on_host import Outputs
from tests.agents import job_in
from tests.damage import DAMAGE


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_content_travels_once(tmp_path: Path) -> None:
    here = Store(tmp_path)
    one, two = digest(b"1"), digest(b"2")
    assert here.missing([one, two, one]) == sorted([one, two])
    here.add(archive(**{one: b"1"}))
    assert here.missing([one, two]) == [two]


def test_a_damaged_content_is_refused(tmp_path: Path) -> None:
    here = Store(tmp_path)
    with pytest.raises(OSError, match="damaged"):
        here.add(archive(**{digest(b"1"): b"2"}))
    assert here.missing([digest(b"1")]) == [digest(b"1")]


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_content_that_is_damaged_on_the_disk_is_never_used(tmp_path: Path, kind: str) -> None:
    here = Store(tmp_path / "store")
    good, bad = digest(b"print(1)"), digest(b"print(2)")
    both = archive(**{good: b"print(1)", bad: b"print(2)"})
    here.add(both)
    DAMAGE[kind](here.path(bad))
    files = [["good.py", False, good, None], ["bad.py", False, bad, None]]
    with pytest.raises(DamagedError, match="1 file of the code") as caught:
        here.check_out(files, tmp_path / "code")
    assert caught.value.digests == (bad,)
    assert not (tmp_path / "code" / "bad.py").exists()
    assert here.missing([good, bad]) == [bad]
    here.add(both)
    here.check_out(files, tmp_path / "code")
    assert (tmp_path / "code" / "bad.py").read_bytes() == b"print(2)"


@pytest.mark.parametrize("kind", DAMAGE)
def test_whoever_asks_for_contents_that_are_read_hears_of_damaged_ones(tmp_path: Path, kind: str) -> None:
    here = Store(tmp_path)
    one, two = digest(b"print(1)"), digest(b"print(2)")
    here.add(archive(**{one: b"print(1)", two: b"print(2)"}))
    DAMAGE[kind](here.path(two))
    assert here.missing([one, two], verify=True) == [two]
    assert not here.path(two).exists()


def test_a_content_replaces_a_folder_in_its_place(tmp_path: Path) -> None:
    here = Store(tmp_path)
    one = digest(b"print(1)")
    (here.path(one) / "in the way").mkdir(parents=True)
    here.add(archive(**{one: b"print(1)"}))
    assert here.path(one).read_bytes() == b"print(1)"


def test_contents_that_arrive_are_not_taken_for_contents_that_are_here(tmp_path: Path) -> None:
    here = Store(tmp_path)
    with pytest.raises(OSError, match="damaged"):
        here.add(archive(**{digest(b"1"): b"1", digest(b"2"): b"3"}))
    assert here.missing([digest(b"1")]) == [digest(b"1")]
    assert list(tmp_path.iterdir()) == []


def test_a_job_may_change_its_copy_but_not_the_store(tmp_path: Path) -> None:
    here = Store(tmp_path / "store")
    one = digest(b"print(1)")
    here.add(archive(**{one: b"print(1)"}))
    here.check_out([["sub/run.sh", True, one, None], ["link", False, "", "sub/run.sh"]], tmp_path / "code")
    copy = tmp_path / "code" / "sub" / "run.sh"
    assert os.access(copy, os.X_OK)
    assert (tmp_path / "code" / "link").read_text() == "print(1)"
    copy.write_text("changed")
    assert here.path(one).read_bytes() == b"print(1)"


def test_a_failed_write_leaves_the_old_content_and_no_debris(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old", 0o600)
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes", 0o600)  # type: ignore[arg-type]
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"old", ["file"])


def make_job(jobs: Path, name: str) -> Path:
    folder = jobs / name
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "same.py").write_bytes(b"1")
    (folder / "code" / "edited.py").write_bytes(b"edited by the job")
    (folder / "code" / "model.pt").write_bytes(b"made by the job")
    files = [["same.py", False, digest(b"1"), None], ["edited.py", False, digest(b"1"), None]]
    (folder / "code.json").write_text(json.dumps(files))
    (folder / "lock.node1").touch()
    return folder


def test_a_sweep_takes_copies_of_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "OLD_JOBS_KEPT", 1)
    old, new = make_job(tmp_path, "20260101"), make_job(tmp_path, "20260102")
    sweep_old_jobs(tmp_path)
    assert sorted(path.name for path in (old / "code").iterdir()) == ["edited.py", "model.pt"]
    assert len(list((new / "code").iterdir())) == 3


def test_a_sweep_takes_a_link_but_no_file_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone keeps none of the others."""
    monkeypatch.setattr(store, "OLD_JOBS_KEPT", 0)
    code = make_job(tmp_path, "20260101") / "code"
    (code / "link").symlink_to("same.py")
    (code / "latest.pt").write_bytes(b"a checkpoint")
    (code / "other").symlink_to("model.pt")
    links = [[name, False, "", "same.py"] for name in ("latest.pt", "other", "link")]
    gone = ["gone.py", False, digest(b"1"), None]
    (code.parent / "code.json").write_text(json.dumps([gone, *links, ["same.py", False, digest(b"1"), None]]))
    sweep_old_jobs(tmp_path)
    assert sorted(path.name for path in code.iterdir()) == ["edited.py", "latest.pt", "model.pt", "other"]


def test_a_sweep_follows_no_link_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "OLD_JOBS_KEPT", 0)
    own = tmp_path / "own"
    jobs = tmp_path / "jobs"
    whole, part = make_job(jobs, "20260101"), make_job(jobs, "20260102")
    (whole / "code").rename(own)
    (whole / "code").symlink_to(own)
    (part / "code" / "sub").symlink_to(own)
    (part / "code.json").write_text(json.dumps([["sub/same.py", False, digest(b"1"), None]]))
    sweep_old_jobs(jobs)
    assert (own / "same.py").exists()


def test_a_restart_keeps_the_files_that_its_program_has_changed(tmp_path: Path) -> None:
    here, code, own = Store(tmp_path / "store"), tmp_path / "code", tmp_path / "own"
    here.add(archive(**{digest(b"1"): b"1"}))
    names = ("same.py", "state.txt", "gone.py", "torn.py", "sub/linked.py")
    files = [[name, False, digest(b"1"), None] for name in names]
    here.check_out(files, code)
    (code / "torn.py").write_text("")  # a crash of the host
    before = max(path.stat().st_ctime_ns for path in code.rglob("*"))
    time.sleep(0.02)  # more than a tick of the kernel's clock
    (code / "state.txt").write_text("step 7")
    (code / "gone.py").unlink()
    (code / "sub").rename(own)
    (own / "linked.py").unlink()
    (code / "sub").symlink_to(own)
    made = (code / "same.py").stat().st_ctime_ns
    here.check_out(files, code, before)
    assert [(code / name).read_text() for name in names[:4]] == ["1", "step 7", "1", "1"]
    assert (code / "same.py").stat().st_ctime_ns == made  # so it does not count as written by the program
    assert not (own / "linked.py").exists()


def test_a_sweep_leaves_a_held_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "OLD_JOBS_KEPT", 0)
    running = make_job(tmp_path, "20260101")
    with (running / "lock.node1").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        sweep_old_jobs(tmp_path)
        assert len(list((running / "code").iterdir())) == 3
    sweep_old_jobs(tmp_path)
    assert len(list((running / "code").iterdir())) == 2


# -- files that a program writes into its job's folder, beside the code, are found --


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
