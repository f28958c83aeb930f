"""The benchmark measures one device alone and all together, and says of what its batch is one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
import torch

from train.architectures import BUILT_IN, architecture
from train.benchmark import BenchmarkConfig, Rate
from train.errors import TrainError

if TYPE_CHECKING:
    from tests.train.conftest import Launch

QUICK = ("--batch-size", "2", "--warm-up", "1", "--iterations", "3", "--batches", "1")


def test_two_ranks_are_measured_alone_and_together(launch: Launch) -> None:
    job = launch("mpirun", 2, "-m", "train.benchmark", "--dummy", "--sync", "mpi4py", *QUICK)
    assert job.status == 0, job.stderr
    lines = job.stdout.splitlines()
    assert "launched by mpirun, --sync mpi4py" in lines[0]
    assert "77 tensors, synthetic images 3x32x32, batch 2 per device, 4 in total" in lines[1]
    assert [line.split("  ")[0] for line in lines[2:5]] == ["one device alone", "per device", "total of 2"]
    total, per_device = (float(job.verdict[name]) for name in ("img_per_second", "per_device"))
    assert total == pytest.approx(2 * per_device, rel=0.01)
    assert float(job.verdict["efficiency"]) > 0


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_network_scores_every_class(name: str) -> None:
    built = architecture(name)
    assert built.network(torch.zeros(2, *built.shape)).shape == (2, built.classes)


def test_the_networks_are_what_they_are_said_to_be() -> None:
    tensors = [each.numel() for each in architecture("resnet26").network.parameters()]
    assert (len(tensors), round(sum(tensors) / 1e6, 2)) == (77, 0.37)
    assert round(sum(each.numel() for each in architecture("mlp").network.parameters()) / 1e6) == 25


def test_a_network_that_is_not_there_is_a_clear_error() -> None:
    words = "has no resnet-1" if find_spec("torchvision") else "--arch resnet-1 is torchvision's"
    with pytest.raises(TrainError, match=rf"(?s){words}.*there are: mlp, resnet26"):
        architecture("resnet-1")


def test_a_compression_that_would_not_be_done_is_refused() -> None:
    with pytest.raises(TrainError, match="--compress bf16 needs --sync mpi4py, got --sync ddp"):
        BenchmarkConfig(compress="bf16")


def test_seconds_for_an_image_still_have_figures() -> None:
    assert str(Rate(0.0512, 0.0024)) == "0.051 ± 0.002 img/s"


def test_a_rate_has_its_mean_and_196_standard_deviations() -> None:
    assert str(Rate.of([90.0, 110.0])) == "100.0 ± 19.6 img/s"
    assert Rate.of([90.0, 110.0]).times(0.5) == Rate(50.0, 9.8)
