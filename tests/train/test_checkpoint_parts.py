"""Checkpoints.save and load take the parts of a training as they are."""

from __future__ import annotations

import argparse
import collections
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from muster.train import Checkpoints, ShardedCheckpoints
from muster.train.checkpoint.state import refuse_unreadable
from muster.train.job.failure import TrainError
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job


def _silent(group: Job, tmp_path: Path, **options: Any) -> Checkpoints:
    return Checkpoints(group, tmp_path / f"host{group.rank}", say=lambda _: None, **options)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1),
        np.zeros(2),
        np.random.get_state(legacy=True),
        collections.deque([1]),
        collections.defaultdict(list),
        Path("a"),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
        argparse.Namespace(a=1),
        frozenset({1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_loaded_is_refused_before_it_is_saved(tmp_path: Path, value: Any) -> None:
    def refused(group: Job) -> str:
        checkpoints = _silent(group, tmp_path)
        with pytest.raises(TrainError) as refusal:
            checkpoints.save(1, {"loader": {"place": [1, value]}})
        assert not list(checkpoints.folder.iterdir())
        return str(refusal.value)

    (said,) = on_hosts(tmp_path, 1, refused)
    kind = np.ndarray if isinstance(value, tuple) else type(value)  # numpy's state is a tuple with an array
    place = "'loader'['place'][1][1]" if isinstance(value, tuple) else "'loader'['place'][1]"
    assert said.startswith(f"a checkpoint cannot hold {place}, a {kind.__module__}.{kind.__qualname__}: only")


def test_what_is_accepted_can_be_loaded(tmp_path: Path) -> None:
    values = {
        "numbers": [None, True, 1, 1 << 200, 1.5, 1j, float("inf")],
        "text": ("x", b"x", bytearray(b"x"), {"x"}),
        "of torch": [torch.Size([2]), torch.bfloat16, torch.device("cpu")],
        "mappings": [collections.OrderedDict(a=1), collections.Counter("aa"), {(1, 2): {None: 1.5}}],
    }
    refuse_unreadable(values, "values")
    tensors = [torch.ones(2), nn.Parameter(torch.ones(2)), nn.Buffer(torch.ones(2))]
    refuse_unreadable(tensors, "tensors")
    torch.save(values, tmp_path / "values")
    torch.save(tensors, tmp_path / "tensors")
    assert torch.load(tmp_path / "values", weights_only=True) == values
    assert len(torch.load(tmp_path / "tensors", weights_only=True)) == len(tensors)


@pytest.mark.parametrize("kind", [Checkpoints, ShardedCheckpoints])
def test_a_diverged_training_pushes_out_no_good_checkpoint(tmp_path: Path, kind: Any) -> None:
    def run(group: Job) -> tuple[str, list[str], int | None]:
        checkpoints = kind(group, tmp_path / f"host{group.rank}", keep=1, say=lambda _: None)
        model = nn.Linear(2, 2)
        checkpoints.save(1, {"model": model})
        if group.rank == 1:
            with torch.no_grad():
                model.weight[0, 0] = torch.nan
        with pytest.raises(TrainError) as refusal:
            checkpoints.save(2, {"model": model})
        there = sorted(path.name for path in checkpoints.folder.iterdir())
        return str(refusal.value).partition(";")[0], there, checkpoints.load({"model": model})

    assert (
        on_hosts(tmp_path, 2, run)
        == [("step 2: inf or nan on rank 1 (host1): a weight", ["step-00000001"], 1)] * 2
    )


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 3)))


def _parts(strategy: str, compiled: str) -> dict[str, Any]:
    """Return a model and its optimizer under a strategy, compiled as a whole, inside or not at all."""
    network: Any = _network()
    if compiled == "a block":
        network[1] = torch.compile(network[1], backend="eager")
    if compiled == "inside":
        network = torch.compile(network, backend="eager")
    if strategy == "fsdp":
        fully_shard(network, mesh=init_device_mesh("cpu", (2,)))
    if strategy in {"ddp", "zero"}:
        network = nn.parallel.DistributedDataParallel(network)
    if compiled == "outside":
        network = torch.compile(network, backend="eager")
    if strategy == "zero":
        return {
            "model": network,
            "optimizer": ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW),
        }
    return {"model": network, "optimizer": torch.optim.AdamW(network.parameters())}


def _train(parts: dict[str, Any]) -> None:
    """Take a step without the compiled forward pass: only names matter here."""
    for number, parameter in enumerate(parts["model"].parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    parts["optimizer"].step()


COMPILED = ("plain", "a block", "inside", "outside")
STRATEGIES = ("none", "ddp", "zero", "fsdp")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compiled_and_plain_models_continue_each_other(tmp_path: Path, strategy: str) -> None:
    """Each form saves after a step; each other form, and that of a single process, has the same then."""

    def run(group: Job) -> list[str]:
        wrong = []
        torch.set_num_threads(1)
        for number, form in enumerate(COMPILED):
            if strategy == "fsdp" and form == "inside":
                continue  # fully_shard takes no compiled module
            checkpoints = _silent(group, tmp_path / str(number))
            parts = _parts(strategy, form)
            _train(parts)
            checkpoints.save(1, parts)
            for other_strategy, other in [(strategy, "plain"), (strategy, "outside"), ("none", "a block")]:
                again = _parts(other_strategy, other)
                assert checkpoints.load(again) == 1
                _train(again)
                alone = _parts("none", "plain")
                _train(alone)
                _train(alone)
                expected = list(alone["model"].parameters())
                for mine, whole in zip(again["model"].parameters(), expected, strict=True):
                    full = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
                    if not torch.allclose(full, whole, atol=1e-6):
                        wrong.append(f"{form} to {other_strategy} {other}")
        return wrong

    assert on_hosts(tmp_path, 2, run) == [[], []]


def test_every_part_with_a_state_is_loaded_in_place_and_plain_data_is_replaced(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            "best": {"loss": 9.0, "weights": torch.zeros(2)},
        }

    def run(group: Job) -> tuple[int | None, float, float, float]:
        first, second = parts(), parts()
        first["optimizer"].step()
        first["scheduler"].step()
        first["best"] = {"loss": 1.0, "weights": torch.ones(2)}
        checkpoints = _silent(group, tmp_path)
        assert checkpoints.load(second) is None
        checkpoints.save(7, first)
        step = checkpoints.load(second)
        assert torch.equal(first["model"].weight, second["model"].weight)
        rate = second["optimizer"].param_groups[0]["lr"]
        return step, rate, second["scheduler"].get_last_lr()[0], second["best"]["weights"].sum().item()

    assert on_hosts(tmp_path, 1, run) == [(7, 0.5, 0.5, 2.0)]


def test_other_options_are_refused_by_name_with_nothing_changed(tmp_path: Path) -> None:
    def run(group: Job) -> tuple[str, int | None]:
        _silent(group, tmp_path, same={"seed": 1, "batch_size": 8}).save(1, {"model": nn.Linear(2, 2)})
        model = nn.Linear(2, 2)
        before = model.weight.detach().clone()
        with pytest.raises(TrainError) as refusal:
            _silent(group, tmp_path, same={"seed": 2, "batch_size": 8}).load({"model": model})
        assert torch.equal(before, model.weight)
        with pytest.raises(TrainError, match="another network: weight is"):
            _silent(group, tmp_path).load({"model": nn.Linear(3, 3)})
        with pytest.raises(TrainError, match="the checkpoint has no 'ema'"):
            _silent(group, tmp_path).load({"ema": model})
        return str(refusal.value), _silent(group, tmp_path).load({"model": model})

    (said, step), _ = on_hosts(tmp_path, 2, run)
    assert said == "the checkpoint is of a training with seed 1, not 2; continue with the same"
    assert step == 1
