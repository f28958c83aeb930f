"""Which GPU or NPU a rank takes, where there are none: torch is made to see some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import torch

from benchmarks.gpu import part_examples, part_mpi
from benchmarks.gpu.jobs import found_in
from benchmarks.gpu.records import Proof, Recorder
from muster.train.job.backend import available, device_for, uuid_of
from muster.train.job.failure import TrainError
from muster.train.job.ranks import Ranks

SECOND = Ranks(1, 2, 1, 2, "srun")


def _sees(monkeypatch: pytest.MonkeyPatch, count: int, kind: str = "cuda") -> Mock:
    """Have torch see `count` devices; returns what it is asked."""
    seen = Mock()
    seen.device_count.return_value = count
    seen.get_device_properties.side_effect = lambda device: Mock(uuid=f"GPU-{device.index}")
    monkeypatch.setattr(torch, kind, seen, raising=False)
    return seen


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize(("count", "number"), [(2, 1), (8, 1), (1, 0)])
def test_a_rank_takes_its_gpu(monkeypatch: pytest.MonkeyPatch, backend: str, count: int, number: int) -> None:
    seen = _sees(monkeypatch, count)
    device = device_for(backend, SECOND)
    assert device == torch.device("cuda", number)
    seen.set_device.assert_called_once_with(device)
    assert uuid_of(device) == f"GPU-{number}"


def test_ranks_without_a_gpu_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _sees(monkeypatch, 0)
    assert device_for("gloo", SECOND) == torch.device("cpu")
    assert uuid_of(torch.device("cpu")) is None


@pytest.mark.parametrize(("backend", "kind", "count"), [("nccl", "cuda", 2), ("hccl", "npu", 1)])
def test_a_device_for_each_rank(monkeypatch: pytest.MonkeyPatch, backend: str, kind: str, count: int) -> None:
    """An NPU has no UUID that tells two from one, so a single one is for the first rank alone."""
    _sees(monkeypatch, count, kind)
    with pytest.raises(TrainError, match=f"no {kind} device left, this host has {count} and {backend}"):
        device_for(backend, Ranks(2, 3, 2, 3, "torchrun"))


@pytest.mark.parametrize(
    ("shown", "why"),
    [(None, ""), ("0", ""), ("", ", and CUDA_VISIBLE_DEVICES= hides them all"), ("-1", ", and .*=-1 hides")],
)
def test_a_hidden_gpu_is_the_reason(monkeypatch: pytest.MonkeyPatch, shown: str | None, why: str) -> None:
    _sees(monkeypatch, 0).is_available.return_value = False
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(TrainError, match=rf"^backend nccl needs a GPU that torch can see{why or ';'}"):
        available("nccl")


# -- the jobs of the GPU proof about ranks and examples, in host memory: on a GPU only kernels are new --


if TYPE_CHECKING:
    from tests.train.conftest import Launch


@pytest.mark.soak
def test_two_ranks_find_right_values(launch: Launch) -> None:
    job = launch("mpirun", 2, str(part_mpi.RANKS), "mpi", "cpu")
    assert job.status == 0, job.stderr
    first, second = (told["wrong"] for told in found_in(job.stdout))
    assert set(first.values()) == set(second.values()) == {""}
    assert {"all_reduce", "receives_into_memory_in_use", "a_future_with_a_callback"} <= set(first)


@pytest.mark.soak
@pytest.mark.parametrize("part", [part_mpi, part_examples])
def test_a_part_passes(tmp_path: Path, part: object) -> None:
    recorder = Recorder(tmp_path / "records.jsonl")
    getattr(part, "run")(recorder, Proof(tmp_path, "cpu", short=True))  # noqa: B009 - it is a module
    assert [record for record in recorder.records if record.outcome == "fail"] == []
    assert sum(record.outcome == "pass" for record in recorder.records) > 5
