"""Prints the rows of a sweep: in the columns of nccl-tests, which scripts read, or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_WHAT = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_TITLES = "{:>7}  {:>6}  {:>6} {:>6}"
_UNITS = "{:>7}  {:>6}  {:>6}  {:>5}"
HEADS = (
    f"{_WHAT}           out-of-place                       in-place          ".format(*[""] * 5),
    f"{_WHAT}  {_TITLES}  {_TITLES}".format(
        *("size", "count", "type", "redop", "root"), *("time", "algbw", "busbw", "#wrong") * 2
    ),
    f"{_WHAT}  {_UNITS}  {_UNITS}".format(
        *("(B)", "(elements)", "", "", ""), *("(us)", "(GB/s)", "(GB/s)", "") * 2
    ),
)
"""The heads of the columns, in the widths of nccl-tests."""


@dataclass(frozen=True, slots=True)
class About:
    """What is measured: how many ranks, by which backend, on which kind of device."""

    ranks: int
    backend: str
    device: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds of a call, GB/s (1e9 bytes), and wrong elements on all ranks; None if not checked."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None

    def __str__(self) -> str:
        wrong = "N/A" if self.wrong is None else str(self.wrong)
        return f"  {duration(self.time_us):>7}  {self.algbw:6.2f}  {self.busbw:6.2f}  {wrong:>5}"


@dataclass(frozen=True, slots=True)
class Row:
    """One size of one operation: bytes, and elements of each rank's part. No root is -1."""

    operation: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: Figures
    in_place: Figures

    def __str__(self) -> str:
        what = f"{self.size:12d}  {self.count:12d}  {self.type:>8}  {self.redop:>6}  {self.root:6d}"
        return f"{what}{self.out_of_place}{self.in_place}"


def duration(microseconds: float) -> str:
    """Return the digits that nccl-tests print."""
    digits = 0 if microseconds >= 10000 else 1 if microseconds >= 100 else 2
    return f"{microseconds:.{digits}f}"


class Printer:
    """Prints a sweep as text, if `print_it`. `wrong` counts wrong elements."""

    def __init__(self, *, print_it: bool) -> None:
        self._print_it = print_it
        self._bus: list[float] = []
        self.wrong = 0

    def begin(self, about: About, hosts: Sequence[str], settings: str) -> None:
        """Say what is measured, and where each rank is."""
        self._line(f"# nThread 1 nGpus 1 {settings}")
        self._line(f"#\n# Using {about.backend} on {about.device}, {about.ranks} ranks")
        for rank, host in enumerate(hosts):
            self._line(f"#  Rank {rank:2d} Group  0 on {host:>10} device {about.device}")
        self._line("#")

    def operation(self, name: str) -> None:
        """Begin an operation: its name, and the columns."""
        self._line(f"# Collective test starting: {name}_perf\n#")
        for line in HEADS:
            self._line(line)

    def row(self, row: Row) -> None:
        """Print a row."""
        for figures in (row.out_of_place, row.in_place):
            self._bus.append(figures.busbw)
            self.wrong += figures.wrong or 0
        self._line(str(row))

    def refused(self, name: str, message: str) -> None:
        """Say that there are no rows of an operation."""
        self._line(f"# {name}: refused: {message}")

    def end(self) -> None:
        """Print the outcome."""
        mean = sum(self._bus) / len(self._bus) if self._bus else 0.0
        self._line(f"# Out of bounds values : {self.wrong} {'FAILED' if self.wrong else 'OK'}")
        self._line(f"# Avg bus bandwidth    : {mean:g} \n#")

    def _line(self, text: str) -> None:
        if self._print_it:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


class JsonPrinter(Printer):
    """Prints a sweep as JSON lines."""

    def begin(self, about: About, hosts: Sequence[str], settings: str) -> None:
        """Say what is measured."""
        self._line(json.dumps({"bench": "collectives", **asdict(about)}))

    def operation(self, name: str) -> None:
        """Its name is in each row."""

    def row(self, row: Row) -> None:
        """Print a row."""
        self.wrong += (row.out_of_place.wrong or 0) + (row.in_place.wrong or 0)
        self._line(json.dumps({"bench": "collective", **asdict(row)}))

    def refused(self, name: str, message: str) -> None:
        """Say that there are no rows of an operation."""
        self._line(json.dumps({"bench": "refused", "operation": name, "message": message[:400]}))

    def end(self) -> None:
        """Nothing is left to say."""


def printer(as_json: bool, *, print_it: bool) -> Printer:
    """Return what prints a sweep."""
    return (JsonPrinter if as_json else Printer)(print_it=print_it)
