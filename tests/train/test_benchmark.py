"""The benchmark measures one device alone and all together, and says of what its batch is one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch

from benchmarks.tools import scaling as benchmark
from benchmarks.tools.architectures import BUILT_IN, architecture
from benchmarks.tools.scaling import BenchmarkConfig, Rate, measure, report
from muster.train.job.failure import TrainError
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job
    from tests.train.conftest import Launch

QUICK = ("--batch-size", "2", "--warm-up", "1", "--iterations", "3", "--batches", "1")


@pytest.mark.soak
def test_two_ranks_are_measured_alone_and_together(launch: Launch) -> None:
    job = launch("mpirun", 2, "-m", "benchmarks.tools.scaling", "--dummy", *QUICK)
    assert job.status == 0, job.stderr
    lines = job.stdout.splitlines()
    assert "launched by mpirun" in lines[0]
    assert "77 tensors, synthetic images 3x32x32, batch 2 per device, 4 in total" in lines[1]
    assert [line.split("  ")[0] for line in lines[2:5]] == ["one device alone", "per device", "total of 2"]
    assert (job.verdict["ranks"], job.verdict["batch_per_device"]) == ("2", "2")


def test_the_rate_is_that_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 0.1 s on the first rank's clock and 0.3 s on the second's."""
    config = BenchmarkConfig(arch="mlp", batch_size=2, warm_up=1, iterations=3, batches=5)

    def run(group: Job) -> tuple[float, float]:
        now = [0.0]

        def step(*_: object) -> None:
            now[0] += (0.1, 0.3)[group.rank]

        monkeypatch.setattr(benchmark, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        monkeypatch.setattr(benchmark, "_step", step)
        alone = measure(config, group, [group.rank])
        return alone.mean, measure(config, group, [0, 1]).mean

    (first, together), (second, same) = on_hosts(tmp_path, 2, run)
    assert first == pytest.approx(2 / 0.1)
    assert second == pytest.approx(2 / 0.3)
    assert together == same == pytest.approx(2 * 2 / 0.2)


def test_the_efficiency_is_of_the_total_to_as_many_devices_alone() -> None:
    group = cast("Job", SimpleNamespace(world_size=4))
    lines = report(BenchmarkConfig(), group, Rate(100.0, 1.0), Rate(300.0, 8.0))
    assert lines[1] == "per device          75.0 ± 2.000 img/s"
    assert lines[3] == "scaling efficiency  75.0%, total / (4 x one device alone)"
    assert "img_per_second=300.0 per_device=75.0 efficiency=0.750 ranks=4" in lines[4]


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


def test_seconds_for_an_image_still_have_figures() -> None:
    assert str(Rate(0.0512, 0.0024)) == "0.051 ± 0.002 img/s"


def test_a_rate_has_its_mean_and_196_standard_deviations() -> None:
    assert str(Rate.of([90.0, 110.0])) == "100.0 ± 19.6 img/s"
    assert Rate.of([90.0, 110.0]).times(0.5) == Rate(50.0, 9.8)
