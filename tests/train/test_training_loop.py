"""TrainingLoop: a user's own loop goes on from a checkpoint as if nothing had ended it."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from muster.train import (
    Checkpoints,
    GlobalBatchSampler,
    Job,
    ShardedCheckpoints,
    TrainError,
    TrainingLoop,
    synchronise,
)
from muster.train.checkpoint import files, shards
from muster.train.checkpoint.core import FOLDER
from muster.train.checkpoint.of_each_rank import decoded, encoded
from muster.train.data.on_device import OnDevice
from muster.train.job import lock
from muster.train.job.group import shared_folder
from tests.train.forked import on_hosts

SAMPLES, BATCH = 22, 8  # two whole batches an epoch
INPUTS = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(5))


class Numbers(IterableDataset[Any]):
    """Every n-th sample, from the one of this rank on."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __iter__(self) -> Iterator[Any]:
        mine = INPUTS[
            self.job.rank : SAMPLES // self.job.world_size * self.job.world_size : self.job.world_size
        ]
        yield from ((each, each.sum(0, keepdim=True)) for each in mine)


class StatefulLoader(DataLoader[Any]):
    """A loader that knows its place in an epoch, as torchdata's StatefulDataLoader does."""

    done = skip = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "drawn": torch.tensor([self.done])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = state["done"]

    def __iter__(self) -> Any:
        skip, self.skip = self.skip, 0
        return self._rest(super().__iter__(), skip)

    def _rest(self, batches: Iterator[Any], skip: int) -> Iterator[Any]:
        for self.done, batch in enumerate(batches, start=1):
            if self.done > skip:
                yield batch


def loader(kind: str, job: Job) -> DataLoader[Any]:
    if kind == "iterable":
        return DataLoader(Numbers(job), batch_size=BATCH // job.world_size, drop_last=True)
    sampler = GlobalBatchSampler(
        samples=SAMPLES, batch_size=BATCH, rank=job.rank, world_size=job.world_size, drop_last=True
    )
    made = StatefulLoader if kind == "stateful" else DataLoader
    return made(TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True)), batch_sampler=sampler)


def trained(kind: str, out: Path, steps: int, resume: bool, job: Job) -> dict[str, Any]:
    """Train with two parameter groups, a scheduler, an EMA, dropout and a BatchNorm; returns all of it."""
    job = replace(job, out=out)
    torch.manual_seed(1)
    model = synchronise(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)), job
    )
    job.seed(2)
    first, *others = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "weight_decay": 0.0}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    scheduler = CosineAnnealingLR(optimizer, 9)
    ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    batches = loader(kind, job)
    states: dict[str, Any] = {
        **{"model": model, "optimizer": optimizer, "scheduler": scheduler, "ema": ema, "seen": 0},
        **({"loader": batches} if kind == "stateful" else {}),
    }
    with TrainingLoop(job, states, resume=resume, log_every=2) as loop:
        for inputs, targets in loop.batches(batches, steps=steps):
            loss = job.global_mean((model(inputs) - targets) ** 2)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            ema.update_parameters(model.module)
            states["seen"] += len(inputs)
            loop.log(loss=loss, lr=float(scheduler.get_last_lr()[0]), samples=BATCH)
            scheduler.step()
    weights = [weight.tolist() for weight in [*model.state_dict().values(), *ema.state_dict().values()]]
    return {"weights": weights, "lr": scheduler.get_last_lr(), "seen": states["seen"], "epoch": loop.epoch}


def losses(out: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


@pytest.mark.parametrize("kind", ["global", "stateful", "iterable"])
def test_a_training_that_resumes_is_equal_bit_by_bit(tmp_path: Path, kind: str) -> None:
    """Step 3 is in the middle of an epoch."""
    whole = on_hosts(tmp_path, 2, partial(trained, kind, tmp_path / "whole", 7, False))
    on_hosts(tmp_path, 2, partial(trained, kind, tmp_path / "parts", 3, False))
    resumed = on_hosts(tmp_path, 2, partial(trained, kind, tmp_path / "parts", 7, True))
    assert resumed == whole
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert [step for step, _ in losses(tmp_path / "whole")] == [2, 4, 6]
    assert whole[0]["epoch"] == 3


@pytest.mark.parametrize("kind", ["global", "stateful"])
def test_a_training_resumes_at_another_number_of_ranks(tmp_path: Path, kind: str) -> None:
    on_hosts(tmp_path, 2, partial(trained, kind, tmp_path, 3, False))
    (alone,) = on_hosts(tmp_path, 1, partial(trained, kind, tmp_path, 7, True))
    assert alone["seen"] == 3 * BATCH // 2 + 4 * BATCH
    assert [step for step, _ in losses(tmp_path)] == [2, 4, 6]


def loop_of(job: Job, out: Path, states: dict[str, Any] | None = None, **options: Any) -> TrainingLoop:
    return TrainingLoop(replace(job, out=out), {} if states is None else states, **options)


class Loss:
    """A loss on a device that counts how often the host waits for it."""

    def __init__(self) -> None:
        self.read = 0

    def __float__(self) -> float:
        self.read += 1
        return 0.5


def _read(out: Path, job: Job) -> list[int]:
    waits, read = [], []
    with loop_of(job, out, log_every=2) as loop:
        loop.figures.restart = lambda *, wait=False: waits.append(wait)  # type: ignore[method-assign]
        for _ in loop.batches(range(6), steps=4):
            loop.log(loss=(loss := Loss()), lr=0.1, samples=1)  # type: ignore[arg-type]
            read.append(loss.read)
    assert waits == [True, False, True, False]  # so that only the step that is due is timed with the device
    return read


def test_the_host_reads_a_loss_only_in_a_step_that_is_logged(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 1, partial(_read, tmp_path / "out")) == [[0, 1, 0, 1]]


def _warned(out: Path, job: Job) -> int:
    with warnings.catch_warnings(record=True) as warned, loop_of(job, out, log_every=1) as loop:
        warnings.simplefilter("always")
        for _ in loop.batches(range(1)):
            loop.log(loss=torch.ones((), requires_grad=True), lr=0.1, samples=1)
    return len(warned)


def test_a_loss_with_a_gradient_is_logged_without_a_warning(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 1, partial(_warned, tmp_path / "out")) == [0]


def _diverged(out: Path, job: Job) -> str:
    weight = nn.Linear(1, 1)
    with pytest.raises(TrainError) as caught, loop_of(job, out, {"model": weight}, save_every=1) as loop:
        for number in loop.batches([1.0, 1.0, math.nan, 1.0]):
            job.global_mean(weight(torch.full((1, 1), number)))
    return str(caught.value)


def test_a_training_that_diverged_saves_nothing_more(tmp_path: Path) -> None:
    (said,) = on_hosts(tmp_path, 1, partial(_diverged, tmp_path))
    assert "step 3: inf or nan on rank 0 (host0)" in said
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert saved == ["step-00000001", "step-00000002"]


def _garbage(out: Path, job: Job) -> list[bool]:
    seen = [gc.isenabled()]
    with pytest.raises(KeyError), loop_of(job, out):
        seen.append(gc.isenabled())
        raise KeyError
    with loop_of(job, out, collect_every=0):
        seen.append(gc.isenabled())
    return [*seen, gc.isenabled()]


@pytest.mark.parametrize("asked", [False, True])
def test_the_last_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asked: bool) -> None:
    """ShardedCheckpoints write while the training goes on; here that takes a while."""
    write = shards.write

    def slow(*arguments: Any) -> None:
        time.sleep(0.5)
        write(*arguments)

    monkeypatch.setattr(shards, "write", slow)

    def run(job: Job) -> list[int]:
        job = replace(job, out=tmp_path)
        sharded = ShardedCheckpoints(job, tmp_path, say=lambda _: None)
        states: dict[str, Any] = {"model": nn.Linear(4, 1)}
        ended = pytest.raises(SystemExit) if asked else nullcontext()
        with ended, TrainingLoop(job, states, checkpoints=sharded, log_every=0) as loop:
            for _ in loop.batches(loader("global", job), steps=2):
                if asked and loop.step == 1:
                    os.kill(os.getpid(), signal.SIGUSR1)
        return [files.step_of(path) for path in files.stored(tmp_path / FOLDER)]

    assert len(on_hosts(tmp_path, 1, run)[0]) == 1


@pytest.mark.parametrize("kind", [Checkpoints, ShardedCheckpoints])
def test_a_training_that_cannot_resume_says_why_and_changes_nothing(tmp_path: Path, kind: Any) -> None:
    def run(job: Job) -> list[Any]:
        said: list[str] = []

        def loop(**options: Any) -> TrainingLoop:
            saves = kind(job, tmp_path, say=said.append)
            return TrainingLoop(replace(job, out=tmp_path), {"n": 1}, checkpoints=saves, **options)

        errors = []
        with pytest.raises(TrainError) as error:
            loop(resume=True)
        errors.append(str(error.value))
        with loop() as first:
            [*first.batches(range(2))]
        (saved,) = (tmp_path / FOLDER).glob("step-*/*.pt")
        saved.write_bytes(saved.read_bytes()[:-9])  # truncated, as by a full disk
        with pytest.raises(TrainError) as error:
            loop(resume=True)
        errors.append(str(error.value))
        assert saved.exists()
        assert loop(resume="if-any").step == 0
        return [*errors, said]

    ((nothing, damaged, said),) = on_hosts(tmp_path, 1, run)
    assert "there is no checkpoint in it" in nothing
    assert f"no host has a complete checkpoint in {tmp_path / FOLDER}" in damaged
    assert "does not have the checksum" in damaged
    assert 'resume="if-any"' in damaged
    assert said[-1] == "the training starts at step 1"


def test_a_folder_has_one_job(tmp_path: Path) -> None:
    """The first job is this process, the others are forked from it."""

    def begun(name: str, restart: int, job: Job) -> str:
        try:
            loop_of(replace(job, name=name, restart=restart), tmp_path)
            loop_of(replace(job, name=name, restart=restart), tmp_path)  # a second training of one process
        except TrainError as error:
            return str(error)
        return ""

    assert lock.hold(tmp_path, "a-1", 0) == ""
    (tmp_path / lock.FILE).read_bytes()  # as a copy of the folder does
    said = [on_hosts(tmp_path, 1, partial(begun, *job))[0] for job in [("b-2", 0), ("a-1", 0), ("a-1", 1)]]
    refusal = f"host0: another job writes to {tmp_path}: job a-1 (process {os.getpid()} on "
    assert [text.startswith(refusal) for text in said] == [True, True, False]
    assert said[2] == ""  # a restart need not wait until a file server notices that a host was lost
    if not (worker := os.fork()):
        signal.pause()
    lock.release()
    try:
        assert on_hosts(tmp_path, 1, partial(begun, "b-2", 0)) == [""]
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_a_relative_folder_is_that_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Job) -> list[str]:
        (tmp_path / str(job.rank)).mkdir()
        monkeypatch.chdir(tmp_path / str(job.rank))
        return [str(shared_folder(job, path)) for path in (Path("runs/alone"), Path(f"/{job.rank}"))]

    assert on_hosts(tmp_path, 2, run) == [["runs/alone", "/0"], [f"{tmp_path}/0/runs/alone", "/1"]]


def test_sharded_checkpoints_of_another_folder_are_refused(tmp_path: Path) -> None:
    def run(job: Job) -> None:
        sharded = ShardedCheckpoints(job, tmp_path, say=lambda _: None)
        with pytest.raises(TrainError, match="sharded checkpoints resume in their own folder"):
            TrainingLoop(job, {}, checkpoints=sharded, resume=tmp_path / "elsewhere")

    on_hosts(tmp_path, 1, run)


def test_garbage_collection_has_fixed_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_hosts(tmp_path, 1, partial(_garbage, tmp_path / "out")) == [[True, False, True, True]]

    def collected(job: Job) -> list[int]:
        steps: list[int] = []
        with loop_of(job, tmp_path / "out", collect_every=3) as loop:
            collect = Mock(side_effect=lambda _: steps.append(loop.step))
            monkeypatch.setattr("muster.train.training_loop.gc.collect", collect)
            assert [*loop.batches(range(7))] == [*range(7)]
        return steps

    assert on_hosts(tmp_path, 1, collected) == [[3, 6]]


def _left_and_gone_on(out: Path, job: Job) -> list[list[int]]:
    with loop_of(job, out) as loop:
        first = []
        for number in loop.batches(range(5)):
            first.append(number)
            if loop.step == 2:
                break
        rest = [*loop.batches(range(5))]
        return [first, rest, [loop.step, loop.epoch], [*loop.batches(range(2))]]


def test_after_a_break_the_rest_of_the_epoch_follows(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 1, partial(_left_and_gone_on, tmp_path / "out")) == [
        [[0, 1], [2, 3, 4], [5, 1], [0, 1]]
    ]


def _refused(out: Path, job: Job) -> list[str]:
    def samples(**order: Any) -> DataLoader[Any]:
        sampler = GlobalBatchSampler(samples=6, batch_size=2, rank=0, world_size=1, **order)
        return DataLoader(TensorDataset(torch.arange(6)), batch_sampler=sampler)

    said = []
    with pytest.raises(TrainError) as taken:
        loop_of(job, out, {"position": 3})
    said.append(str(taken.value))
    with pytest.raises(TrainError) as empty, loop_of(job, out) as loop:
        [*loop.batches([], steps=3)]
    said.append(str(empty.value))
    with loop_of(job, out) as loop:
        next(loop.batches(samples(seed=1)))
    for order in ({"seed": 2}, {"seed": 1, "shuffle": False}, {"seed": 1, "drop_last": True}):
        with pytest.raises(TrainError) as other, loop_of(job, out, resume=True) as loop:
            next(loop.batches(samples(**order)))
        said.append(str(other.value))
    with loop_of(job, out, resume=True) as loop:
        assert loop.position.order is not None
        del loop.position.order["shuffle"]  # as an earlier version saved it
        next(loop.batches(samples(seed=1)))
    return said


def test_what_a_loop_cannot_go_on_with_is_refused(tmp_path: Path) -> None:
    (said,) = on_hosts(tmp_path, 1, partial(_refused, tmp_path / "out"))
    assert said[0] == "the loop keeps its own 'position' in a checkpoint: take another name"
    assert said[1] == "the loader gave no batch in a whole epoch"
    assert "'seed': 1" in said[2]
    assert "'seed': 2" in said[2]
    assert "'shuffle': True" in said[3]
    assert "'drop_last': False" in said[4]


def test_the_tensors_of_a_batch_go_to_the_device_and_the_rest_stays_as_it_is() -> None:
    batch: dict[str, Any] = {"x": torch.ones(2), "more": [torch.ones(1), "text", (3, None)]}
    moved = OnDevice(torch.device("meta"))(batch)
    assert (moved["x"].device.type, moved["more"][0].device.type) == ("meta", "meta")
    assert moved["more"][1:] == ["text", (3, None)]
    assert OnDevice(torch.device("cpu"))(batch) is batch


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 0.25, "text", b"\0\xff", [1, [2]], (1, (2, "x")), math.inf),
        {"a": 1, 2: {"b": (None,)}},
        {},
    ],
    ids=repr,
)
def test_a_state_of_a_rank_travels_as_json(value: object) -> None:
    arrived = decoded(json.loads(json.dumps(encoded(value), allow_nan=False)))
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_a_tensor_travels_with_its_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    arrived = decoded(json.loads(json.dumps(encoded(tensor))))
    assert arrived.dtype == dtype
    assert torch.equal(arrived, tensor)


def test_a_state_that_no_checkpoint_can_hold_is_named() -> None:
    with pytest.raises(TrainError, match="a checkpoint cannot hold PosixPath: /x"):
        encoded({"where": Path("/x")})


@pytest.mark.parametrize(
    "sent", [{"no": 1}, {}, {"dict": 3}, {"tensor": ["float32", [3], "00"]}, {"bytes": 3}]
)
def test_what_no_rank_encodes_is_refused(sent: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, RuntimeError)):
        decoded(sent)
