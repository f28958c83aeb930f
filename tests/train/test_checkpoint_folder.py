"""A checkpoint on a disk is whole, or it is named and the next older one is taken."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from muster.train.checkpoint import files, shards
from muster.train.job.failure import TrainError


def _state(step: int, numbers: int = 250_000) -> dict[str, Any]:
    """Return a state whose every number is its step, a megabyte so that a mixture would show."""
    return {"model": torch.full((numbers,), float(step)), "step": step}


def _newest(folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint that is whole."""
    for path in files.stored(folder):
        try:
            files.verify(path)
        except files.Unfit:
            continue
        return files.load(path)
    return _state(0)


def _fork(function: Callable[[], None]) -> int:
    """Return the process that runs `function`; it ends with 1 if that raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # a forked process has none of the threads that torch started before
            function()
            status = 0
        finally:
            os._exit(status)
    return child


def _die_before(operation: int) -> None:
    """Kill this process before that operation on files, counted from 0."""
    left = operation

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    os.fsync, os.unlink, os.rmdir = counted(os.fsync), counted(os.unlink), counted(os.rmdir)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.mkdir = counted(Path.mkdir)  # type: ignore[method-assign]


@pytest.mark.parametrize("third", [3, 2], ids=["a new step", "a step that exists"])
def test_a_kill_at_any_operation_of_a_save_costs_no_complete_checkpoint(tmp_path: Path, third: int) -> None:
    """Two checkpoints are kept, so the save of a third step removes one."""
    half_written, operation, killed = 0, 0, True
    while killed:
        folder = tmp_path / str(operation)
        for step in (1, 2):
            files.save(folder, step, _state(step))

        def save(folder: Path = folder, operation: int = operation) -> None:
            _die_before(operation)
            files.save(folder, third, _state(3))
            files.prune(folder, keep=2)

        _, status = os.waitpid(_fork(save), 0)
        killed = os.WIFSIGNALED(status)
        assert killed or status == 0
        newest, path = max(files.found(folder).items())  # as another run does, with --resume PATH
        files.verify(path)
        assert (newest, files.load(path)["step"]) in {(2, 2), (third, 3)}
        files.recover(folder, files.replaced(folder))  # as the next run does
        state, newest = _newest(folder), files.step_of(files.stored(folder)[0])
        assert (newest, state["step"]) in {(2, 2), (third, 3)}
        assert torch.all(state["model"] == state["step"])
        half_written += any(folder.glob(f"*{files.BESIDE}"))
        operation += 1
    assert operation > half_written >= 4, "the kills came between the saves, not in them"


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut_off_the_last_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _put_a_folder_in_place_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": lambda path: os.truncate(path / files.STATE, 1000),
    "short of one byte": lambda path: _cut_off_the_last_byte(path / files.STATE),
    "empty": lambda path: os.truncate(path / files.STATE, 0),
    "a flipped bit": lambda path: _flip_a_bit(path / files.STATE),
    "missing": lambda path: (path / files.STATE).unlink(),
    "an empty folder": _empty,
    "a missing checksum": lambda path: (path / files.CHECKSUM).unlink(),
    "an empty checksum": lambda path: os.truncate(path / files.CHECKSUM, 0),
    "a flipped bit in the checksum": lambda path: _flip_a_bit(path / files.CHECKSUM),
    "a folder in its place": lambda path: _put_a_folder_in_place_of(path / files.STATE),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = files.save(tmp_path, 2, _state(2))
    files.verify(path)
    damage(path)
    with pytest.raises(files.Unfit, match=r"step-00000002/state\.pt"):
        files.verify(path)


def test_sha256sum_checks_a_checkpoint_without_this_program(tmp_path: Path) -> None:
    import subprocess

    path = files.save(tmp_path, 7, _state(7))
    check = ["sha256sum", "--check", "--strict", files.CHECKSUM]
    assert subprocess.run(check, cwd=path, capture_output=True, check=True).stdout == b"state.pt: OK\n"


@pytest.mark.parametrize("room", [0, 50, 100_000, 1_000_100])
def test_a_full_disk_is_a_clear_error_and_keeps_the_old_checkpoint(tmp_path: Path, room: int) -> None:
    """A limit on the size of a file stands in for the disk: write(2) fails in the middle of one."""
    files.save(tmp_path, 1, _state(1))

    def save() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        with pytest.raises(TrainError, match=r"cannot write the checkpoint .*step-00000002: File too large"):
            files.save(tmp_path, 2, _state(2))

    assert os.waitpid(_fork(save), 0)[1] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert _newest(tmp_path)["step"] == 1


@pytest.mark.parametrize("room", [0, 100_000, 1_000_100])
def test_a_sharded_save_on_a_full_disk_leaves_nothing(tmp_path: Path, room: int) -> None:
    def save() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        tensors, piece = [torch.ones(250_000)], torch.ones(1_100_000, dtype=torch.uint8)
        index = shards.Index("save", "", 0, [])
        with pytest.raises(OSError, match="File too large"):
            shards.write(tmp_path / "0000-of-0002", "save", [], {"tensors": tensors})
        with pytest.raises(OSError, match="File too large"):
            shards.write_received(tmp_path / "0001-of-0002", index, [piece])

    assert os.waitpid(_fork(save), 0)[1] == 0
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainError, match=r"cannot write the checkpoint .*: Not a directory\n.*--out"):
        files.save(tmp_path / "file", 1, _state(1))


def test_the_newest_are_kept_and_nothing_half_written(tmp_path: Path) -> None:
    for step in (9, 10, 11, 100_000_000):
        files.save(tmp_path, step, _state(step, 10))
    (tmp_path / f"step-00000012{files.BESIDE}").mkdir()
    (tmp_path / f"step-00000008{files.REPLACED}").mkdir()
    files.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000011", "step-100000000"]
    assert [files.step_of(path) for path in files.stored(tmp_path)] == [100_000_000, 11]


def test_what_is_later_is_set_aside_and_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        files.save(folder, step, _state(step, 10))
    assert files.set_aside(folder, after=2) == tmp_path / "checkpoints.1"
    assert files.set_aside(folder, after=-1) == tmp_path / "checkpoints.2"
    assert files.set_aside(folder, after=-1) is None
    assert _newest(tmp_path / "checkpoints.1")["step"] == 3
    assert _newest(tmp_path / "checkpoints.2")["step"] == 2


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    path = files.save(tmp_path, 1, {"model": Harm()})
    files.verify(path)
    with pytest.raises(TrainError, match="is no checkpoint of this program"):
        files.load(path)
    assert not (tmp_path / "harm").exists()


def test_a_checkpoint_that_this_host_does_not_see_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"cannot read .*state\.pt on .*: No such file or directory"):
        files.load(tmp_path / "step-00000001")
