"""The public names of muster.train: their list, their signatures, and what a user's own loop relies on."""

from __future__ import annotations

import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import muster.train
from muster.train import GlobalBatchSampler, Job, TrainError, process_group
from muster.train.job.ranks import Ranks
from tests.train.conftest import environment
from tests.train.forked import on_hosts

# A change here is a change for users: the changelog names it.
SIGNATURES = {
    "ShardedCheckpoints": "(group: 'Job', out: 'Path', *, keep: 'int' = 3, "
    "say: 'Callable[[str], None] | None' = None, same: 'Mapping[str, Any] | None' = None) -> 'None'",
    "Checkpoints": "(group: 'Job', out: 'Path', *, keep: 'int' = 3, "
    "say: 'Callable[[str], None] | None' = None, same: 'Mapping[str, Any] | None' = None) -> 'None'",
    "GlobalBatchSampler": "(*, samples: 'int', batch_size: 'int', rank: 'int', world_size: 'int', "
    "seed: 'int' = 0, shuffle: 'bool' = True, drop_last: 'bool' = False) -> 'None'",
    "Preemption": "(group: 'Job') -> 'None'",
    "RandomStreams": "(group: 'Job') -> 'None'",
    "TrainingLoop": "(job: 'Job', states: 'MutableMapping[str, Any]', *, "
    "resume: \"bool | Path | Literal['if-any'] | None\" = None, "
    "checkpoints: 'BaseCheckpoints | None' = None, "
    "save_every: 'int' = 0, "
    "log_every: 'int' = 10, collect_every: 'int' = 50, profile: 'str' = '', tensorboard: 'bool' = False) "
    "-> 'None'",
    "StepLog": "(group: 'Job', out: 'Path', *, after_step: 'int' = 0, tensorboard: 'bool' = False) -> 'None'",
    "StepMetrics": "(step: 'int', loss: 'float', lr: 'float', gradient_norm: 'float | None', "
    "samples_per_second: 'float', tokens_per_second: 'float | None', step_seconds: 'float', "
    "data_seconds: 'float', compute_seconds: 'float', optimizer_seconds: 'float', "
    "peak_memory_bytes: 'int', time: 'float') -> None",
    "process_group": "(ranks: 'Ranks | None' = None, *, backend: 'str | None' = None, init: 'str' = 'auto', "
    "timeout: 'timedelta' = datetime.timedelta(seconds=300), environ: 'Mapping[str, str]' = ..., "
    "step_timeout: 'timedelta | None' = None) -> 'Iterator[Job]'",
    "profile_steps": "(text: 'str', group: 'Job', out: 'Path', *, after_step: 'int' = 0) "
    "-> 'Iterator[Callable[[], None]]'",
    "register_mpi": "() -> 'str'",
    "run": "(function: 'Callable[..., T]', *arguments: 'Any', spawn: 'int' = 0, "
    "backend: 'str | None' = None, init: 'str' = 'auto', "
    "timeout: 'timedelta' = datetime.timedelta(seconds=300), "
    "step_timeout: 'timedelta | None' = None) -> 'T | None'",
    "synchronise": "(model: 'nn.Module', job: 'Job', **options: 'Any') -> 'DistributedDataParallel'",
}
MEMBERS_OF_JOB = {
    *("rank", "world_size", "ranks", "hosts", "host_count", "node_rank"),
    *("backend", "device", "store", "timeout", "long_works", "losses", "sums", "out", "restart", "name"),
    *("all_gather", "all_reduce_sum", "barrier", "broadcast", "check_finite", "global_mean", "mesh", "seed"),
    *("first_step_done", "step_timeout"),
}


def test_the_public_names_and_their_signatures_are_these() -> None:
    assert {*SIGNATURES, "Job", "TrainError"} == {*muster.train.__all__} == {*muster.train._PLACES}
    for name, signature in SIGNATURES.items():
        written = inspect.signature(getattr(muster.train, name))
        parameters = [
            parameter.replace(default=...) if parameter.name == "environ" else parameter
            for parameter in written.parameters.values()
        ]
        assert str(written.replace(parameters=parameters)).replace("Ellipsis", "...") == signature, name
    assert {name for name in dir(Job) if not name.startswith("_")} == MEMBERS_OF_JOB


def test_the_package_is_imported_without_torch_and_lists_its_names() -> None:
    script = """
import sys
sys.modules["torch"] = None  # an import of it would raise
import muster.train
assert {*muster.train.__all__} <= {*dir(muster.train)}
try:
    muster.train.no_such_name
except AttributeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("module 'muster.train' has no attribute 'no_such_name'\n", "")


def test_a_type_checker_sees_every_public_name() -> None:
    """Each is imported below TYPE_CHECKING, from where it is imported when it is used."""
    text = (Path(muster.train.__file__)).read_text().partition("if TYPE_CHECKING:")[2].partition("__all__")[0]
    for name, (module, attribute) in muster.train._PLACES.items():
        (line,) = [line for line in text.splitlines() if f" .{module} " in line and attribute in line]
        assert line.endswith(f"{attribute} as {name}") or name == attribute


def _gradient(job: Job, losses: list[list[float]]) -> tuple[float, float]:
    """The mean of the ranks' `losses`, each times a weight of 1, and the gradient that DDP makes of it."""
    weight = torch.ones((), requires_grad=True)
    mean = job.global_mean(torch.tensor(losses[job.rank]) * weight)
    torch.autograd.backward(mean)
    assert weight.grad is not None
    averaged = job.all_reduce_sum(weight.grad.item())[0] / job.world_size
    return mean.item(), averaged


def _gradient_of_uneven_shares(group: object) -> tuple[float, float]:
    return _gradient(group, [[1.0, 2.0, 3.0], [6.0], []])  # type: ignore[arg-type]


def test_the_global_mean_and_its_gradient_weigh_every_sample_alike(tmp_path: Path) -> None:
    """Three ranks with three samples, one and none: the mean of the ranks' means would be 4."""
    assert on_hosts(tmp_path, 3, _gradient_of_uneven_shares) == [pytest.approx((3.0, 3.0))] * 3


def _accumulated_gradient(micro_batches: list[list[list[float]]], group: Job) -> tuple[float, float]:
    """The mean and its gradient, of this rank's micro-batches, each loss times a weight of 1."""
    weight = torch.ones((), requires_grad=True)
    mine = [torch.tensor(losses) for losses in micro_batches[group.rank]]
    total = sum(len(losses) for losses in mine)
    means = [group.global_mean(losses * weight, step_total=total) for losses in mine]
    for mean in means:
        torch.autograd.backward(mean)
    assert weight.grad is not None
    averaged = group.all_reduce_sum(weight.grad.item())[0] / group.world_size
    return sum(mean.item() for mean in means), averaged


@pytest.mark.parametrize(
    "micro_batches",
    [
        [[[1.0] * 10, [7.0] * 2]],
        [[[1.0] * 10, [7.0] * 2], [[3.0], [4.0] * 5]],
        [[[1.0] * 10, [7.0] * 2], [[], [4.0] * 5], [[], []]],
    ],
)
def test_unequal_micro_batches_are_one_batch(tmp_path: Path, micro_batches: list[list[list[float]]]) -> None:
    """Ten tokens of 1 and two of 7 have a mean of 2; the mean of the two means is 4."""
    every = [loss for of_rank in micro_batches for losses in of_rank for loss in losses]
    mean = sum(every) / len(every)
    ranks = len(micro_batches)
    accumulated = on_hosts(tmp_path, ranks, partial(_accumulated_gradient, micro_batches))
    assert accumulated == [pytest.approx((mean, mean))] * ranks


def test_a_step_of_fewer_losses_than_one_call_has_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="step_total is 2, and this call alone has 3 losses"):
        on_hosts(tmp_path, 1, lambda group: group.global_mean(torch.ones(3), step_total=2).item())


def test_a_loss_that_is_a_mean_already_counts_by_its_weight(tmp_path: Path) -> None:
    """As a model of Hugging Face returns it: the mean of 3 tokens on one rank, and of 1 on another."""

    def run(job: Job) -> tuple[float, float]:
        weight = torch.ones((), requires_grad=True)
        of_rank = [[1.0, 2.0, 3.0], [6.0]][job.rank]
        loss = (torch.tensor(of_rank) * weight).mean()
        mean = job.global_mean(loss, weight=torch.tensor(3) if job.rank == 0 else 1)
        torch.autograd.backward(mean)
        assert weight.grad is not None
        return mean.item(), job.all_reduce_sum(weight.grad.item())[0] / job.world_size

    assert on_hosts(tmp_path, 2, run) == [pytest.approx((3.0, 3.0))] * 2


@pytest.mark.parametrize(
    ("losses", "weight", "says"), [(2, 1, "one number, not 2"), (1, 0, "weight is 0: the loss must be")]
)
def test_a_weight_without_a_mean_is_a_mistake(tmp_path: Path, losses: int, weight: int, says: str) -> None:
    with pytest.raises(Exception, match=says):
        on_hosts(tmp_path, 1, lambda group: group.global_mean(torch.ones(losses), weight=weight).item())


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 257), (torch.float16, 70_000)])
def test_the_16_bit_mean_counts_every_sample(tmp_path: Path, dtype: torch.dtype, count: int) -> None:
    """257 is 256 in bfloat16, and float16 ends at 65504."""

    def mean_and_gradient(group: object) -> tuple[float, float]:
        losses = torch.ones(count, dtype=dtype, requires_grad=True)
        mean = group.global_mean(losses)  # type: ignore[attr-defined]
        mean.backward()
        assert losses.grad is not None
        return mean.item(), losses.grad[0].item()

    of_each = torch.tensor(1 / count, dtype=dtype).item()
    assert on_hosts(tmp_path, 1, mean_and_gradient) == [(1.0, of_each)]


def test_a_batch_without_samples_for_a_rank_is_refused_before_the_first_step() -> None:
    sampler = GlobalBatchSampler(samples=193, batch_size=64, rank=0, world_size=3)
    with pytest.raises(TrainError, match="a batch of 1 samples has none for some of 3 ranks"):
        next(iter(sampler))
    assert [len(share.indices) for share in sampler.shares()] == [22, 22, 22, 1]


def test_a_dataloader_gets_the_batches_but_a_smaller_last_one() -> None:
    loaders = [
        DataLoader(
            TensorDataset(torch.arange(193)),
            batch_sampler=GlobalBatchSampler(
                samples=193, batch_size=64, rank=rank, world_size=3, drop_last=True
            ),
        )
        for rank in range(3)
    ]
    steps = list(zip(*loaders, strict=True))
    assert [sum(len(part) for (part,) in step) for step in steps] == [64, 64, 64]
    assert len({int(number) for step in steps for (part,) in step for number in part}) == 192


def test_in_a_notebook_an_exception_goes_to_the_caller_and_the_next_run_works() -> None:
    script = """
from muster.train import run
def fail(job):
    raise ValueError(f"no paper, restart {job.restart}, {job.out}")
for attempt in range(2):
    try:
        run(fail)
    except ValueError as error:
        print(error)
print(run(lambda job, number: job.world_size + number, 41))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(MUSTER_OUT="/tmp/out", MUSTER_RESTART="2"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no paper, restart 2, /tmp/out"] * 2 + ["42"]


def test_a_restart_that_is_no_number_is_refused() -> None:
    with (
        pytest.raises(
            TrainError, match="MUSTER_RESTART or TORCHELASTIC_RESTART_COUNT must be a whole number"
        ),
        process_group(Ranks(0, 1, 0, 1, "single"), environ={"MUSTER_RESTART": "x"}),
    ):
        pass
