"""examples/gpt_sharded.py: the losses of gpt.py on every mesh, and checkpoints that fit any other."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from muster.train import ShardedCheckpoints, TrainError
from muster.train.checkpoint.parts import local
from muster.train.job.group import Job
from tests.train.forked import on_hosts, run_script

if TYPE_CHECKING:
    from tests.train.conftest import Launch

EXAMPLES = Path(__file__).parents[2] / "examples"
GPT, SHARDED = EXAMPLES / "gpt.py", EXAMPLES / "gpt_sharded.py"
SHAPE = ("--layers", "2", "--width", "16", "--heads", "2", "--context", "16")
TINY = (
    *SHAPE,
    "--batch-size",
    "8",
    "--accumulate",
    "2",
    "--log-every",
    "1",
    "--peak",
    "1e9",
    "--sample",
    "8",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("".join(f"{number}, " for number in range(2000)))
    return "--data", str(folder)


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "steps.jsonl").read_text().splitlines()]


def train(out: Path, ranks: int, text: tuple[str, ...], *words: str, script: Path = SHARDED) -> list[float]:
    """Train; returns the loss of every step since the first."""
    run_script(script, ranks, *TINY, *text, *words, out=out)
    return losses(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: tuple[str, ...]) -> list[float]:
    """The losses of six steps of gpt.py on one rank."""
    return train(tmp_path_factory.mktemp("whole"), 1, text, "--steps", "6", script=GPT)


def test_a_sharded_model_resumes(tmp_path: Path, text: tuple[str, ...], whole: list[float]) -> None:
    """Two ranks, then three, with the losses of one rank and a model that is not sharded."""
    train(tmp_path, 2, text, "--steps", "3", "--save-every", "2")
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000002", "step-00000003"]
    assert {path.name for path in (tmp_path / "checkpoints" / kept[-1]).iterdir()} == {
        *("0000-of-0002.pt", "0000-of-0002.json", "0001-of-0002.pt", "0001-of-0002.json")
    }
    assert train(tmp_path, 3, text, "--steps", "6", "--resume") == pytest.approx(whole, abs=1e-5)


def test_a_checkpoint_without_the_files_of_a_rank_is_unused(tmp_path: Path, text: tuple[str, ...]) -> None:
    first = train(tmp_path, 1, text, "--steps", "2", "--save-every", "1")
    lost = tmp_path / "checkpoints" / "step-00000002" / "0000-of-0001.json"
    lost.unlink()
    assert train(tmp_path, 1, text, "--steps", "2", "--resume") == pytest.approx(first, abs=1e-5)
    assert lost.exists()


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        pytest.param(2, "--offload --recompute", id="offloaded", marks=pytest.mark.soak),
        pytest.param(4, "--tensor 2", id="2 shards x 2 tensor", marks=pytest.mark.soak),
        pytest.param(4, "--replicas 2", id="2 replicas x 2 shards", marks=pytest.mark.soak),
        pytest.param(4, "--replicas 2 --tensor 2", id="2 replicas x 2 tensor", marks=pytest.mark.soak),
    ],
)
def test_the_losses_are_those_of_the_whole_model_on_every_mesh(
    tmp_path: Path, text: tuple[str, ...], whole: list[float], ranks: int, words: str
) -> None:
    half = train(tmp_path, ranks, text, "--steps", "2", *words.split())
    assert half == pytest.approx(whole[:2], abs=1e-5)
    resumed = train(tmp_path, ranks, text, "--steps", "4", "--resume", *words.split())
    assert resumed == pytest.approx(whole[:4], abs=1e-5)


@pytest.mark.soak
def test_ranks_hold_a_quarter_each(launch: Launch, tmp_path: Path, text: tuple[str, ...]) -> None:
    """Weights, gradients and two moments are 16 bytes a weight; each layer is gathered for its step."""
    large = ("--layers", "8", "--width", "1024", "--heads", "16", "--context", "16", "--batch-size", "4")
    words = (*large, *text, "--steps", "1", "--log-every", "1", "--sample", "0")
    peaks = {}
    for ranks in (1, 4):
        several = ("--spawn", str(ranks)) if ranks > 1 else ()
        job = launch("spawn" if several else "single", ranks, str(SHARDED), *words, *several)
        assert job.status == 0, job.stderr
        (step,) = (job.out / "steps.jsonl").read_text().splitlines()
        peaks[ranks] = json.loads(step)["peak_memory_bytes"] / 2**20
        shutil.rmtree(job.out)
    sys.stderr.write(f"MiB of rank 0: {peaks}\n")
    whole = 16 * 101_187_584 / 2**20
    assert peaks[1] > whole
    assert peaks[1] - peaks[4] > 0.6 * whole  # 0.75, but for the layers that are gathered


@pytest.mark.soak
def test_bf16_trains_like_float32(tmp_path: Path, text: tuple[str, ...], whole: list[float]) -> None:
    assert train(tmp_path, 2, text, "--steps", "6", "--dtype", "bf16") == pytest.approx(whole, abs=0.05)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--tensor 3", "--replicas x --tensor must divide the number of ranks, 1"),
        ("--compile", "gpt_sharded.py has neither --compile nor --dtype fp16"),
    ],
)
def test_it_refuses_odd_shards(tmp_path: Path, text: tuple[str, ...], words: str, why: str) -> None:
    with pytest.raises(Exception, match=why):
        train(tmp_path, 1, text, "--steps", "1", *words.split())


def test_what_a_killed_save_left_never_counts_as_a_checkpoint_to_keep(tmp_path: Path) -> None:
    def saved(group: Job) -> int | None:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoints = ShardedCheckpoints(group, tmp_path / "out", keep=1)
        killed = checkpoints.folder / "step-00000200"
        killed.mkdir(parents=True)
        checkpoints.save(180, {"model": model, "optimizer": optimizer})
        checkpoints.finish()
        assert not killed.exists()
        return checkpoints.load({"model": model, "optimizer": optimizer})

    assert on_hosts(tmp_path, 1, saved) == [180]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """What is saved are the weights at the time of the call, whatever happens to them afterwards."""

    def saved(group: Job) -> tuple[int | None, float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(500, 500)
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoints = ShardedCheckpoints(group, tmp_path / "out")
        before = model.weight.detach().clone()
        checkpoints.save(1, {"model": model, "optimizer": optimizer})
        with torch.no_grad():
            model.weight.fill_(7)
        checkpoints.finish()
        step = checkpoints.load({"model": model, "optimizer": optimizer})
        return step, (model.weight - before).abs().max().item()

    assert on_hosts(tmp_path, 1, saved) == [(1, 0.0)]


def shards(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the weights and their first moment, as this rank has them."""
    return [local(model.weight), local(optimizer.state[model.weight]["exp_avg"])]


def test_the_shards_of_each_rank_are_copied_before_the_training_goes_on(tmp_path: Path) -> None:
    def saved(group: Job) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(300, 301)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        checkpoints = ShardedCheckpoints(group, tmp_path / "out")
        torch.autograd.backward(model(torch.ones(1, 300)).sum())
        optimizer.step()
        changed = shards(model, optimizer)
        before = [tensor.clone() for tensor in changed]
        checkpoints.save(1, {"model": model, "optimizer": optimizer})
        with torch.no_grad():
            for tensor in changed:
                tensor.fill_(7)
        optimizer.param_groups[0]["lr"] = 7.0
        checkpoints.finish()
        assert checkpoints.load({"model": model, "optimizer": optimizer}) == 1
        after = shards(model, optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.5
        return [(here - there).abs().max().item() for here, there in zip(before, after, strict=True)], [
            tensor.abs().max().item() for tensor in after
        ]

    for differences, sizes in on_hosts(tmp_path, 2, saved):
        assert differences == [0.0, 0.0]
        assert all(0 < size < 7 for size in sizes)


def test_a_folder_that_cannot_be_written_is_named_on_every_rank(tmp_path: Path) -> None:
    def refused(group: Job) -> str:
        model = torch.nn.Linear(5, 5)
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoints = ShardedCheckpoints(group, tmp_path / "out")
        group.barrier()
        if group.rank == 0:
            checkpoints.folder.rmdir()
            checkpoints.folder.touch()
        group.barrier()
        checkpoints.save(1, {"model": model, "optimizer": optimizer})
        with pytest.raises(TrainError) as refusal:
            checkpoints.finish()
        return str(refusal.value)

    for said in on_hosts(tmp_path, 2, refused):
        where = f"cannot write a checkpoint to {tmp_path / 'out' / 'checkpoints'}: rank 0 (host0): "
        assert said.startswith(where)
        assert "Not a directory" in said
        assert "\n" not in said


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    def refused(group: Job) -> str:
        first, second = torch.nn.Linear(5, 5), torch.nn.Linear(6, 6)
        checkpoints = ShardedCheckpoints(group, tmp_path / "out")
        checkpoints.save(1, {"model": first, "optimizer": torch.optim.AdamW(first.parameters())})
        checkpoints.finish()
        with pytest.raises(TrainError) as refusal:
            checkpoints.load({"model": second, "optimizer": torch.optim.AdamW(second.parameters())})
        return str(refusal.value)

    (said,) = on_hosts(tmp_path, 1, refused)
    assert said == "the checkpoint is of another network: weight is [5, 5] there and [6, 6] here"


def damaged(folder: Path, damage: Callable[[Path], None]) -> list[tuple[int | None, str]]:
    """Which step each of two ranks resumes from after `damage` to the newer of two, and what it says."""

    def resumed(group: Job) -> tuple[int | None, str]:
        said: list[str] = []
        model = torch.nn.Linear(64, 64)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters())
        parts = {"model": model, "optimizer": optimizer}
        checkpoints = ShardedCheckpoints(group, folder / "out", say=said.append)
        before = [local(weight).detach().clone() for weight in model.parameters()]
        checkpoints.save(1, parts)
        with torch.no_grad():
            for weight in model.parameters():
                local(weight).fill_(7)
        checkpoints.save(2, parts)
        checkpoints.finish()
        if group.rank == 0:
            damage(folder / "out" / "checkpoints" / "step-00000002")
        group.barrier()
        try:
            step = checkpoints.load(parts)
        except TrainError as refusal:
            return None, str(refusal)
        assert all(map(torch.equal, before, map(local, model.parameters())))
        return step, "\n".join(said)

    return on_hosts(folder, 2, resumed)


def flip_a_byte(folder: Path) -> None:
    path = folder / "0001-of-0002.pt"
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def write_nothing(folder: Path) -> None:
    (folder / "0001-of-0002.json").write_text("{}")


def move_a_part(folder: Path) -> None:
    path = folder / "0001-of-0002.json"
    index = json.loads(path.read_text())
    index["parts"][0]["box"]["offset"][0] = 1 << 40
    path.write_text(json.dumps(index))


def leave_a_part_out(folder: Path) -> None:
    path = folder / "0001-of-0002.json"
    index = json.loads(path.read_text())
    del index["parts"][0]
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip_a_byte, "host1: step 2: {}: 0001-of-0002.pt does not have the checksum in 0001-of-0002.json"),
        (lambda folder: (folder / "0001-of-0002.pt").unlink(), "host1: step 2: {}: 0001-of-0002.pt: No such"),
        (lambda folder: (folder / "0001-of-0002.json").unlink(), "step 2 is not complete on any host"),
        (write_nothing, "host1: step 2: {}: no Index from 0001-of-0002.json: expected the fields"),
        (move_a_part, "host1: step 2: {}: 0001-of-0002.json: a part of /model/weight lies outside of it"),
    ],
)
def test_a_damaged_newest_is_passed(tmp_path: Path, damage: Callable[[Path], None], why: str) -> None:
    for step, said in damaged(tmp_path, damage):
        assert step == 1
        assert why.format(tmp_path / "out/checkpoints/step-00000002") in said
    assert (tmp_path / "out/checkpoints.1/step-00000002").exists()


@pytest.mark.parametrize(("damage", "why"), [(leave_a_part_out, "/model/weight is not there as a whole")])
def test_a_lacking_part_is_refused(tmp_path: Path, damage: Callable[[Path], None], why: str) -> None:
    for step, said in damaged(tmp_path, damage):
        assert step is None
        assert said == f"{tmp_path}/out/checkpoints/step-00000002 cannot be continued: {why}"


def test_a_hostile_pickle_in_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    """The files may be another host's: its checksum is right, and its contents are code."""

    def replace(folder: Path) -> None:
        path = folder / "0001-of-0002.pt"
        torch.save({"tensors": Path, "tree": {}}, path)  # any global but torch's own is refused
        index = json.loads(path.with_suffix(".json").read_text())
        index["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".json").write_text(json.dumps(index))

    for step, said in damaged(tmp_path, replace):
        assert step is None
        assert "0001-of-0002.pt is no part of a checkpoint: Weights only load failed" in said
        assert "\n" not in said
