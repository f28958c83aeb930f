"""The cost of a start now and before: this checkout beside another one, which has a `.venv` too.

    .venv/bin/python benchmarks/before_after.py ../base --hosts hosts.txt

The contestants run in turn (A B C A B C ...) in one run; figures are medians, and ratios are medians of the
ratios within the rounds, so that other load on the machine counts for all alike. The hosts file is that of
three hosts, such as the practice cluster; lab.py makes the simulated hosts. "By hand" is as in launch.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import launch  # type: ignore[import-not-found]  # beside this script
from lab import ROOT, lab, measure  # type: ignore[import-not-found]

BEFORE, NOW = "before", "now"
START = {
    "an empty Python": ("python", "-c", ""),
    "`muster --version`": ("muster", "--version"),
    "`muster --help`": ("muster", "--help"),
    "`muster status --help`": ("muster", "status", "--help"),
    "`fab --list`": ("fab", "--list"),
}
PLAN = """
import sys, time
from tests.unit import plans
spent = 0.0
def timed(act):
    def call(*given, **named):
        global spent
        began = time.process_time()
        try:
            return act(*given, **named)
        finally:
            spent += time.process_time() - began
    return call
for name in {"place", "place_ranks", "plan"} & vars(plans).keys():
    setattr(plans, name, timed(getattr(plans, name)))
plans.make_plan("\\n".join(f"h{number:04d} slots=8" for number in range(int(sys.argv[1]))))
print(spent)
"""


class Cost(NamedTuple):
    """Seconds of wall time and of processor time."""

    wall: float
    cpu: float


class Checkout(NamedTuple):
    """A checkout with its own environment of Python."""

    folder: Path

    def argv(self, program: str, *arguments: str) -> tuple[str, ...]:
        """A command of this checkout."""
        return (str(self.folder / ".venv" / "bin" / program), *arguments)


def cost(argv: Sequence[str], folder: Path) -> tuple[Cost, str]:
    """Run a command; its cost and its output."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        output.seek(0)
        text = output.read()
    if status:
        sys.exit(f"{' '.join(argv)} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime), text


def in_turn(
    rounds: int, contestants: Mapping[str, Callable[[], float]], *, warm: bool = True
) -> dict[str, list[float]]:
    """The figures of each contestant; the first round is not counted if it only warms caches."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + warm):
        for name, act in contestants.items():
            figure = act()
            if number >= warm:
                figures[name].append(figure)
    return figures


def row(name: str, figures: Mapping[str, Sequence[float]], unit: str = "s", *, factor: float = 1) -> str:
    """A row: before, now, their ratio, and beside what is done by hand."""
    before, now = figures[BEFORE], figures[NOW]
    ratio = statistics.median(new / old for old, new in zip(before, now, strict=True))
    cells = [_median(before, unit, factor), _median(now, unit, factor), f"x {ratio:.2f}"]
    if by_hand := figures.get("by hand"):
        times = [statistics.median(a / b for a, b in zip(who, by_hand, strict=True)) for who in (before, now)]
        cells.append(f"{_median(by_hand, unit, factor)}: x {times[0]:.2f}, now x {times[1]:.2f}")
    else:
        cells.append("")
    return f"| {name} | {' | '.join(cells)} |"


def _median(values: Sequence[float], unit: str, factor: float) -> str:
    return f"{statistics.median(values) * factor:.{0 if unit == 'ms' else 2}f} {unit}"


class Comparison:
    """The two checkouts, and the rounds."""

    def __init__(self, before: Path, rounds: int) -> None:
        self.checkouts = {BEFORE: Checkout(before.resolve()), NOW: Checkout(ROOT)}
        self.rounds = rounds

    def _each(self, act: Callable[[Checkout], float]) -> dict[str, Callable[[], float]]:
        return {name: partial(act, checkout) for name, checkout in self.checkouts.items()}

    def starts(self) -> list[str]:
        """Processor time of commands that connect to nothing."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())

            def act(argv: Sequence[str], checkout: Checkout) -> float:
                return cost(checkout.argv(*argv), place)[0].cpu

            return [
                row(f"{name}, processor time", in_turn(self.rounds, self._each(partial(act, argv))))
                for name, argv in START.items()
            ]

    def planning(self, sizes: Sequence[int]) -> list[str]:
        """Processor time of a plan."""

        def act(size: int, checkout: Checkout) -> float:
            _, text = cost(checkout.argv("python", "-c", PLAN, str(size)), checkout.folder)
            return float(text.split()[-1])

        rounds = min(self.rounds, 3)
        return [
            row(
                f"planning for {size} hosts of 8 slots, processor time",
                in_turn(rounds, self._each(partial(act, size)), warm=False),
            )
            for size in sizes
        ]

    def launches(self, hosts_file: Path, launchers: Sequence[str]) -> list[str]:
        """The last rank's first line beside mpirun or torchrun by hand, and the parts of a start."""
        ssh = ("ssh", "-F", str(hosts_file.parent / ".muster" / "ssh_config"))
        ranks = sum(host.slots for host in launch.hostfile.load(hosts_file))
        lines = []
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            launch.prepare(hosts_file, ssh, place)
            arguments = ("launch", "--hosts", str(hosts_file), "--script", "program.py", "--launcher")
            for launcher in launchers:
                by_hand = f"{launcher} by hand"

                def hand(by_hand: str = by_hand) -> float:
                    commands = launch.contestants(hosts_file, ssh, None, place)[by_hand]
                    return float(launch.measure(commands, ranks, place).last)

                def muster(checkout: Checkout, launcher: str = launcher) -> float:
                    argv = checkout.argv("muster", *arguments, launcher)
                    return float(launch.measure((argv,), ranks, place).last)

                contestants = {"by hand": hand, **self._each(muster)}
                figures = in_turn(self.rounds, contestants)
                lines.append(row(f"last of {ranks} ranks' first line, {launcher}", figures))
            lines += self._parts(arguments, place)
            run = ("run", "--hosts", str(hosts_file), "--", "true")

            def ask(unit: str, checkout: Checkout) -> float:
                return float(getattr(cost(checkout.argv("muster", *run), place)[0], unit))

            for unit, name in (("wall", "`muster run -- true`"), ("cpu", "its processor time here")):
                lines.append(row(name, in_turn(self.rounds, self._each(partial(ask, unit)))))
        return lines

    def _parts(self, arguments: tuple[str, ...], place: Path) -> list[str]:
        parts: dict[str, dict[str, list[float]]] = {}
        for _ in range(self.rounds):
            for name, checkout in self.checkouts.items():
                cost(checkout.argv("muster", *arguments, "mpirun"), place)
                newest = max((place / "runs").glob("*/result.json"), key=lambda path: path.stat().st_mtime)
                for part in json.loads(newest.read_text())["timings"]:
                    took = max(part["ended"] - part["began"], 0.005)
                    parts.setdefault(part["name"], {}).setdefault(name, []).append(took)
        both = {part: figures for part, figures in parts.items() if len(figures) == len(self.checkouts)}
        same = {part: figures for part, figures in both.items() if len({*map(len, figures.values())}) == 1}
        return [row(f"of which: {part}", figures) for part, figures in same.items()]

    def simulated(self, sizes: Sequence[int], image: str) -> list[str]:
        """Processor time of the client for each of many hosts."""
        lines = []
        with (
            tempfile.TemporaryDirectory() as folder,
            lab(Path(folder), max(sizes), image) as made,
        ):
            (made.folder / "code").mkdir()
            (made.folder / "code" / "program.py").write_text(launch.PROGRAM)
            tasks = {
                "run": ("muster", "run", "--", "true"),
                "check": ("muster", "check"),
                "launch, until its start": ("python", "{}/benchmarks/scale.py", "--deliver"),
            }
            for size in sizes:
                made.only(size)
                for name, task in tasks.items():

                    def act(checkout: Checkout, task: tuple[str, ...] = task) -> float:
                        words = [word.replace("{}", str(checkout.folder)) for word in task]
                        return float(measure(checkout.argv(*words), made).client)

                    figures = in_turn(min(self.rounds, 3), self._each(act))
                    lines.append(row(f"{size} simulated hosts, `{name}`, processor time here", figures))
                    lines.append(row("for each host", figures, "ms", factor=1000 / size))
        return lines


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="a folder with another checkout and its .venv")
    parser.add_argument("--hosts", type=Path, default=Path("hosts.txt"), help="of the practice cluster")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 256], help="numbers of simulated hosts")
    parser.add_argument("--plans", type=int, nargs="*", default=[1000, 4000], help="numbers of planned hosts")
    parser.add_argument("--launchers", nargs="*", default=["mpirun", "torchrun"])
    parser.add_argument("--only", nargs="*", default=["starts", "plans", "launches", "simulated"])
    parser.add_argument("--image", default="muster:cpu")
    options = parser.parse_args()
    comparison = Comparison(options.before, options.rounds)
    load = os.getloadavg()[0]
    parts: dict[str, Callable[[], list[str]]] = {
        "starts": comparison.starts,
        "launches": lambda: comparison.launches(options.hosts.resolve(), options.launchers),
        "plans": lambda: comparison.planning(options.plans),
        "simulated": lambda: comparison.simulated(options.sizes, options.image) if options.sizes else [],
    }
    rows = ["| what | before | now | ratio | by hand |", "|---|---|---|---|---|"]
    for name in options.only:
        rows += parts[name]()
        sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the beginning and "
        f"{os.getloadavg()[0]:.1f} at the end; {options.rounds} rounds, in turn; of planning and of "
        f"simulated hosts {min(options.rounds, 3)}\n\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
