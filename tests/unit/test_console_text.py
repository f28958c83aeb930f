"""Numbers with their units, as every message, table and page shows them."""

from __future__ import annotations

import math

import pytest

from muster.deploy.core.text.text import duration, number, percent, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1, "0 s"), (0, "0 s"), (0.0123, "12.3 ms"), (0.9996, "1 s"), (1.42, "1.4 s"), (59, "59 s")),
        *((59.7, "59.7 s"), (59.97, "1 min 0 s"), (200, "3 min 20 s")),
        *((7500, "2 h 5 min"), (100000, "1 d 3 h")),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1000, "1000 B"), (1 << 26, "64 MiB"), (3 << 29, "1.5 GiB"), (1 << 42, "4 TiB")],
)
def test_a_size_has_a_binary_unit(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.35124, "0.3512"), (1234.5, "1,234"), (12.3e6, "12.3M"), (1.2e-5, "1.20e-05")),
        *((math.inf, "inf"), (-2.5, "-2.5")),
    ],
)
def test_a_number_is_as_short_as_it_can_be_read(value: float, text: str) -> None:
    assert number(value) == text


def test_fewer_digits_where_a_measurement_has_no_more() -> None:
    assert [number(value, 3) for value in (0.0957, 9.414, 941.4)] == ["0.0957", "9.41", "941"]
    assert percent(0.834) == "83 %"
