"""Sharded checkpoints on hosts with disks of their own: here each host is a folder of one rank."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from muster.train import ShardedCheckpoints
from muster.train.checkpoint import files, shards
from muster.train.checkpoint.core import Disks
from muster.train.job.failure import TrainError
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job


def parts(ranks: int, seed: int = 0) -> dict[str, Any]:
    """Return a sharded model, larger than its ranks can divide evenly, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 31), nn.Linear(31, 7))
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (ranks,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "step": 0, "seen": [1.5, {"text": "x"}]}


def step(all_parts: dict[str, Any]) -> None:
    """Take a step that is the same at any number of ranks."""
    torch.autograd.backward(all_parts["model"](torch.ones(2, 16)).square().sum())
    all_parts["optimizer"].step()
    all_parts["optimizer"].zero_grad()
    all_parts["step"] += 1


def whole(all_parts: dict[str, Any]) -> list[torch.Tensor]:
    """Return every weight and moment, gathered."""
    state = all_parts["optimizer"].state_dict()["state"]
    moments = [value for each in state.values() for value in each.values()]
    return [
        getattr(each, "full_tensor", each.detach)().clone()
        for each in [*all_parts["model"].parameters(), *moments]
    ]


def save(tmp_path: Path, ranks: int, steps: int) -> list[list[torch.Tensor]]:
    """Train that many steps and save after each; returns the whole state after each."""

    def run(group: Job) -> list[list[torch.Tensor]]:
        checkpoints = ShardedCheckpoints(group, tmp_path / f"host{group.rank}", say=lambda _: None)
        mine, states = parts(ranks), []
        for number in range(1, steps + 1):
            step(mine)
            checkpoints.save(number, mine)
            states.append(whole(mine))
        checkpoints.finish()
        return states

    return on_hosts(tmp_path, ranks, run)[0]


def load(tmp_path: Path, *hosts: int) -> tuple[int | None, list[torch.Tensor], str]:
    """Resume on these hosts; returns the step, the whole state and what rank 0 says."""

    def run(group: Job) -> tuple[int | None, list[torch.Tensor], str]:
        said: list[str] = []
        out = tmp_path / f"host{hosts[group.rank]}"
        checkpoints = ShardedCheckpoints(group, out, say=said.append)
        mine = parts(len(hosts), seed=1)
        found = checkpoints.load(mine)
        assert mine["step"] == (found or 0)
        return found, whole(mine), "\n".join(said)

    return on_hosts(tmp_path, len(hosts), run)[0]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def files_of(tmp_path: Path, host: int, number: int) -> list[str]:
    return shards.names(files.path_of(tmp_path / f"host{host}" / "checkpoints", number))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, save(folder, 3, 2)


@pytest.fixture
def states(trained: tuple[Path, list[list[torch.Tensor]]], tmp_path: Path) -> list[list[torch.Tensor]]:
    """The whole states after two steps of three hosts, whose checkpoints are in `tmp_path`."""
    folder, all_states = trained
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return all_states


@pytest.mark.usefixtures("states")
def test_every_host_keeps_its_files_and_those_of_the_host_before(tmp_path: Path) -> None:
    assert [files_of(tmp_path, host, 2) for host in range(3)] == [
        ["0000-of-0003", "0002-of-0003"],
        ["0000-of-0003", "0001-of-0003"],
        ["0001-of-0003", "0002-of-0003"],
    ]


@pytest.mark.parametrize("moment", ["write", "replace"])
def test_a_kill_in_a_second_save_of_a_step_costs_no_complete_checkpoint(
    tmp_path: Path, states: list[list[torch.Tensor]], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hosts are killed as they begin to write, or two of three when the first has replaced its files."""
    first = files.path_of(tmp_path / "host0" / "checkpoints", 2).with_suffix(files.REPLACED)

    def killed(*_: object) -> None:
        while moment == "replace" and not first.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def run(group: Job) -> None:
        checkpoints = ShardedCheckpoints(group, tmp_path / f"host{group.rank}", say=lambda _: None)
        mine = parts(3)
        checkpoints.load(mine)
        step(mine)
        mine["step"] = 2
        if group.rank or moment == "write":
            monkeypatch.setattr(shards if moment == "write" else files, moment, killed)
        checkpoints.save(2, mine)
        checkpoints.finish()

    with pytest.raises((ProcessExitedException, ProcessRaisedException)):
        on_hosts(tmp_path, 3, run)
    found, state, _ = load(tmp_path, 0, 1, 2)
    assert found == 2
    assert equal(state, states[1]) == (moment == "write")


@pytest.mark.parametrize(
    ("hosts", "fetched"),
    [
        pytest.param((0, 1, 2), {"host0": 1}, marks=pytest.mark.soak),
        ((2, 1), {"host0": 1, "host1": 1}),
        ((1, 3, 2, 4), {"host1": 2, "host3": 1}),
    ],
    ids=str,
)
def test_a_host_may_be_lost_with_its_disk_at_any_new_number_of_hosts(
    tmp_path: Path, states: list[list[torch.Tensor]], hosts: tuple[int, ...], fetched: dict[str, int]
) -> None:
    shutil.rmtree(tmp_path / "host0")
    found, state, said = load(tmp_path, *hosts)
    assert found == 2
    assert equal(state, states[1])
    got = [line for line in said.splitlines() if "got" in line]
    assert got == [f"{host}: got {number} of 3 files of step 2" for host, number in fetched.items()]


def _wrong_list(path: Path) -> None:
    path.with_suffix(".json").write_text("{")


def _short_file(path: Path) -> None:
    os.truncate(path.with_suffix(".pt"), 99)


def _no_file(path: Path) -> None:
    path.with_suffix(".pt").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_wrong_list, "rank 1 (host1): no Index from 0001-of-0003.json"),
        (_short_file, "rank 2 (host2): 0001-of-0003.pt arrived damaged"),
        (_no_file, "rank 1 (host1): [Errno 2] No such file or directory"),
    ],
)
def test_a_neighbour_waits_for_no_file_that_is_damaged_before_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], said: str
) -> None:
    written = shards.write

    def write(path: Path, *contents: Any) -> None:
        written(path, *contents)
        if path.name.startswith("0001"):
            damage(path)

    monkeypatch.setattr(shards, "write", write)
    with pytest.raises(ProcessRaisedException, match=re.escape(said)):
        save(tmp_path, 3, 1)


@pytest.mark.usefixtures("states")
def test_only_what_a_host_lacks_is_fetched(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "host1")
    _, _, said = load(tmp_path, 0, 1, 2)
    assert "host1: got 1 of 3 files of step 2" in said
    assert [files_of(tmp_path, host, 2) for host in range(3)] == [
        ["0000-of-0003", "0002-of-0003"],
        ["0001-of-0003"],
        ["0001-of-0003", "0002-of-0003"],
    ]


def test_after_a_flipped_bit_the_copy_is_used(tmp_path: Path, states: list[list[torch.Tensor]]) -> None:
    _flip_a_bit(files.path_of(tmp_path / "host1/checkpoints", 2) / "0001-of-0003.pt")
    found, state, said = load(tmp_path, 0, 1, 2)
    assert found == 2
    assert equal(state, states[1])
    assert "host1: step 2: " in said
    assert "0001-of-0003.pt does not have the checksum in 0001-of-0003.json; looking for another" in said


def test_a_step_damaged_on_both_hosts_is_passed(tmp_path: Path, states: list[list[torch.Tensor]]) -> None:
    for host in (1, 2):
        _flip_a_bit(files.path_of(tmp_path / f"host{host}/checkpoints", 2) / "0001-of-0003.pt")
    found, state, said = load(tmp_path, 0, 1, 2)
    assert found == 1
    assert equal(state, states[0])
    assert "step 2 is not complete" in said
    assert (tmp_path / "host0/checkpoints.1/step-00000002").exists()


@pytest.mark.parametrize("complete", [True, False])
def test_files_of_two_saves_of_one_step_are_never_mixed(tmp_path: Path, *, complete: bool) -> None:
    save(tmp_path, 2, 1)
    shutil.move(tmp_path / "host1", tmp_path / "kept")
    states = save(tmp_path, 2, 1)
    shutil.rmtree(tmp_path / "host1")
    shutil.move(tmp_path / "kept", tmp_path / "host1")
    for host in () if complete else range(2):  # then each has one of the two files, of different saves
        folder = files.path_of(tmp_path / f"host{host}/checkpoints", 1)
        (folder / f"{shards.name_of(1 - host, 2)}.json").unlink()
    found, state, _ = load(tmp_path, 0, 1)
    assert found == (1 if complete else None)
    assert equal(state, states[0]) == complete  # that of the later save


def test_neighbours_of_uneven_hosts() -> None:
    disks = Disks([0, 0, 0, 3, 4, 4])
    assert [disks.neighbour(rank) for rank in range(6)] == [3, 3, 3, 4, 0, 1]
    assert disks.senders(3) == [0, 1, 2]
    assert [Disks([0, 0]).neighbour(rank) for rank in range(2)] == [None, None]


def _flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_other_options_are_refused(tmp_path: Path) -> None:
    def run(group: Job) -> str:
        checkpoints = ShardedCheckpoints(group, tmp_path / f"host{group.rank}", same={"seed": 1})
        mine = parts(2)
        checkpoints.save(1, mine)
        checkpoints.finish()
        other = ShardedCheckpoints(group, tmp_path / f"host{group.rank}", same={"seed": 2})
        with pytest.raises(TrainError) as refusal:
            other.load(mine)
        return str(refusal.value)

    assert set(on_hosts(tmp_path, 2, run)) == {
        "the checkpoint is of a training with seed 1, not 2; continue with the same"
    }
