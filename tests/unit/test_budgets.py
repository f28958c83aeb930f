"""The size of the code: lines of each package, which may only fall."""

from __future__ import annotations

import subprocess
import sys
from operator import sub
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = {
    "deploy/features/adhoc": 520,
    "deploy/core/agent": 10_870,
    "deploy/api": 700,
    "deploy/features/bench": 980,
    "deploy/features/check": 1_320,
    "deploy/cli": 6_210,
    "deploy/core/wire": 3_030,
    "deploy/core/connect": 5_200,
    "deploy/core/text": 1_000,
    "deploy/features/data": 620,
    "deploy/features/eval": 300,
    "deploy/features/packages": 1_030,
    "deploy/core/hosts": 1_440,
    "deploy/features/image": 1_030,
    "deploy/core/job": 6_190,
    "deploy/core/job": 1_630,
    "deploy/core/plan": 2_800,
    "deploy/features/slurm": 1_410,
    "deploy/features/page": 3_420,
    "deploy/features/why": 2_440,
    "train": 10_920,
}
"""Lower a number when a change removes lines. A change that adds lines to a full package removes others."""
LONGEST_MODULE = 600
MOST_LOADED = {
    "--version": (5, 130),
    "status --help": (39, 4_130),
    "launch --dry-run train.py": (172, 22_000),
}
"""The modules of Muster that a command loads, and their lines: what its start costs. They may only fall."""
LOADED = """
import atexit, sys
from muster.deploy.cli.entry import main
files = lambda: [module.__file__ for name, module in sys.modules.items() if name.startswith("muster")]
atexit.register(lambda: print(*filter(None, files()), sep="\\n", file=sys.stderr))
main()
"""


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_package_grows() -> None:
    counted = {name: sum(map(lines_of, (ROOT / name).rglob("*.py"))) for name in MOST}
    assert {name: lines for name, lines in counted.items() if lines > MOST[name]} == {}
    packages = {path.parent.name for path in (ROOT / "deploy").glob("*/*.py")}
    assert packages == {name.partition("/")[2] for name in MOST if name.startswith("deploy/")}


def test_a_module_is_one_concept_and_no_longer_than_that() -> None:
    modules = [path for folder in ("deploy", "train") for path in (ROOT / folder).rglob("*.py")]
    assert {path.name: lines for path in modules if (lines := lines_of(path)) > LONGEST_MODULE} == {}


def test_no_command_loads_more_than_it_needs(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("localhost slots=1\n")
    (tmp_path / "train.py").touch()
    counted = {}
    for command in MOST_LOADED:
        program = [sys.executable, "-c", LOADED, *command.split()]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
        files = [Path(line) for line in done.stderr.splitlines() if line.endswith(".py")]
        counted[command] = (len(files), sum(map(lines_of, files)))
    over = {
        command: found for command, found in counted.items() if max(map(sub, found, MOST_LOADED[command])) > 0
    }
    assert over == {}
