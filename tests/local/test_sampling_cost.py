"""What samples cost the host, the driver and the ranks."""

from __future__ import annotations

import re

import pytest

from benchmarks import sampling

pytestmark = pytest.mark.soak


def share(figure: str) -> float:
    match = re.match(r"([\d.]+)%", figure)
    assert match, figure
    return float(match[1]) / 100


def test_a_sampler_takes_half_a_percent_of_a_core_at_most() -> None:
    assert share(sampling.host(30.0, ranks=8)) <= 0.005


def test_a_driver_takes_a_fifth_of_a_core_at_most_for_256_hosts() -> None:
    assert share(sampling.driver(256, 20.0)) <= 0.2


def test_steps_take_as_long_with_samples_as_without() -> None:
    """Within 1 %; on a busy machine as nearly as its noise lets it be told."""
    ratio, error = sampling.steps(40.0, ranks=1)
    assert abs(ratio - 1) <= 0.01 + 2 * error
