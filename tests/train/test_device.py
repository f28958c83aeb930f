"""Which GPU or NPU a rank takes, where there are none: torch is made to see some."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

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
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees(
    monkeypatch: pytest.MonkeyPatch, backend: str, count: int, number: int
) -> None:
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
