"""Code on a node: contents by hash, copies for jobs, and what a sweep of old jobs leaves alone."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from muster.deploy.core.wire import store
from muster.deploy.core.wire.durable import write_atomically
from muster.deploy.core.wire.store import DamagedError, Store, sweep_old_jobs
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
