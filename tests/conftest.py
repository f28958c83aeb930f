"""Rules for every test: skips and stretched limits are always reported.

With pytest-xdist, tests that share hosts or module fixtures run in one worker.
"""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from tests import load, parallel

# Variables of a git hook are for this checkout; MUSTER_SSH is for the hosts of a user: neither is for tests.
for name in [name for name in os.environ if name.startswith("GIT_") or name == "MUSTER_SSH"]:
    del os.environ[name]
# Lines of progress depend on how long something takes. Tests of progress turn them on.
os.environ["MUSTER_PROGRESS"] = "off"

HERE = Path(__file__).parent
SOAK_TABLE = HERE.parent / "build" / "soak.txt"
TIMES_TABLE = HERE.parent / "build" / "times.txt"
FIGURE, DURATION, PROCESSOR = "figure", "duration", "processor"  # properties, which xdist's workers pass on

# With REQUIRE_CLUSTER=1 a skipped test fails, except for these reasons.
MAY_BE_SKIPPED = (
    r"no Python 3\.\d+ here",  # ruff holds the files of the hosts to 3.9 wherever it runs
    r"no (zsh|fish) here",  # bash is everywhere; the completion of the others is tried where they are
    r"no podman here",  # Debian packs it; launches into its containers are tried where it is
)


# ---- skips ------------------------------------------------------------------------------------------------


def refused(reason: str) -> str | None:
    """Return why a skip with this reason is a failure; None if it is allowed."""
    allowed = any(re.search(pattern, reason) for pattern in MAY_BE_SKIPPED)
    if os.environ.get("REQUIRE_CLUSTER") != "1" or allowed:
        return None
    return f"REQUIRE_CLUSTER=1 lets nothing be skipped: {reason}"


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure, with its reason, if every test must run."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if refusal := refused(reason):
            report.outcome = "failed"
            report.longrepr = refusal


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report)
    return report


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children. Containers are not in it."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


used = [processor_seconds()]
"""The processor time at the last report. The first test of a file has that of its imports and collection."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(report)
    before, used[0] = used[0], processor_seconds()
    report.user_properties.append((PROCESSOR, used[0] - before))
    if report.passed and load.taken and not {"soak", "timed"} & {mark.name for mark in item.iter_markers()}:
        report.outcome = "failed"
        report.longrepr = f"mark it timed: make soak would never hold the limit of {load.taken[0].what!r}"
    report.user_properties.extend((FIGURE, dataclasses.asdict(figure)) for figure in load.taken)
    load.taken.clear()
    if report.when == "call":
        report.user_properties.append((DURATION, os.getloadavg()[0]))
    return report


# ---- order and groups -------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: parallel.place(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a group in one worker.

    Not `--dist loadgroup`: xdist 3.8 puts the group into `Item._nodeid`, which pytest 9.2 no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist's base is untyped to mypy here
        def _split_scope(self, nodeid: str) -> str:
            return parallel.group(nodeid)

    return Together(config, log)


# ---- limits of time ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Times:
    """The cost of the tests of a file: seconds, with those of their fixtures."""

    processor: float = 0.0
    wall: float = 0.0
    tests: int = 0


class Figures:
    """Gathers the figures of every report, and shows them at the end."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.rows: list[tuple[str, load.Figure]] = []
        self.durations: list[tuple[str, str, float, float]] = []
        self.files = dict[str, Times]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        times = self.files.setdefault(report.nodeid.partition("::")[0], Times())
        times.wall += report.duration
        times.tests += report.when == "call"
        for name, value in report.user_properties:
            if name == FIGURE:
                self.rows.append((report.nodeid, load.Figure(**cast(dict[str, Any], value))))
            elif name == DURATION:
                self.durations.append((report.nodeid, report.outcome, report.duration, cast(float, value)))
            elif name == PROCESSOR:
                times.processor += cast(float, value)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        shown = [(test, figure) for test, figure in self.rows if figure.bound > figure.limit]
        if shown:
            terminalreporter.section("limits that the load stretched")
            for test, figure in shown:
                terminalreporter.line(f"{test}: {line(figure)}")
        measured = [(figure.seconds, figure.limit) for _, figure in self.rows if figure.seconds is not None]
        over = [seconds for seconds, limit in measured if seconds > limit]
        if over and not load.SOAK:
            terminalreporter.line(f"{len(over)} figures are over their limit, which only make soak holds")
        # Not for a worker's part of the run, nor for a test whose ranks are pytests, which have no -m.
        tests = terminalreporter.config.option.markexpr
        if not (self.durations and tests) or hasattr(terminalreporter.config, "workerinput"):
            return
        SOAK_TABLE.parent.mkdir(exist_ok=True)
        TIMES_TABLE.write_text(self.times(tests))
        terminalreporter.line(f"processor time of each file: {TIMES_TABLE}")
        if load.SOAK:
            with SOAK_TABLE.open("a") as table:  # make soak runs pytest twice, and removes the earlier table
                table.write(self.table(tests))
            terminalreporter.line(f"figures, limits and loads: {SOAK_TABLE}")

    def times(self, tests: str) -> str:
        """Return the processor and wall time of each file, the dearest first."""
        took = time.monotonic() - self.began
        total = sum(times.processor for times in self.files.values())
        lines = [f"# {tests}: {len(self.durations)} tests, {total:.0f} s of processor time, {took:.0f} s"]
        lines.append("# processor seconds, wall seconds, tests, file")
        for file, times in sorted(self.files.items(), key=lambda each: -each[1].processor):
            lines.append(f"{times.processor:>9.1f} {times.wall:>9.1f} {times.tests:>6}  {file}")
        return "\n".join(lines) + "\n"

    def table(self, tests: str) -> str:
        """Return every figure that has a limit, then every test with its seconds and the load at its end."""
        took = time.monotonic() - self.began
        lines = [f"# {tests}: {len(self.durations)} tests in {took:.0f} s", ""]
        lines += ["# Limits: seconds, limit, as stretched, load, what, test"]
        for test, figure in self.rows:
            seconds = "-" if figure.seconds is None else f"{figure.seconds:.2f}"
            what = f"{seconds:>8} {figure.limit:>7g} {figure.bound:>7.1f} {figure.load:>6.1f}  {figure.what}"
            lines.append(f"{what}  [{test}]")
        lines += ["", "# Tests: seconds, load, outcome, test"]
        for test, outcome, took, at in self.durations:
            lines.append(f"{took:>8.1f} {at:>6.1f}  {outcome:<7} {test}")
        return "\n".join(lines) + "\n\n"


def line(figure: load.Figure) -> str:
    """Return one figure as a line of text."""
    took = "" if figure.seconds is None else f"{figure.seconds:.2f} s, "
    what = figure.what or "a limit"
    return f"{what}: {took}limit {figure.limit:g} s is {figure.bound:.1f} s at a load of {figure.load:.1f}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Figures(), "figures")
