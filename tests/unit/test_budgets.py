"""The size of the code: lines of each package, which may only fall."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from operator import sub
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST: Mapping[str, int] = {
    "deploy/api": 644,
    "deploy/cli": 3_816,
    "deploy/core/agent": 3_872,
    "deploy/core/connect": 2_906,
    "deploy/core/content": 578,
    "deploy/core/hosts": 984,
    "deploy/core/job": 4_108,
    "deploy/core/plan": 2_179,
    "deploy/core/text": 956,
    "deploy/core/wire": 1_579,
    "deploy/features/adhoc": 1_198,
    "deploy/features/bench": 1_759,
    "deploy/features/check": 1_671,
    "deploy/features/clean": 375,
    "deploy/features/containers": 1_241,
    "deploy/features/data": 1_797,
    "deploy/features/detach": 278,
    "deploy/features/eval": 259,
    "deploy/features/forward": 514,
    "deploy/features/hints": 765,
    "deploy/features/image": 924,
    "deploy/features/init": 112,
    "deploy/features/leases": 1_326,
    "deploy/features/metrics": 100,
    "deploy/features/nested": 59,
    "deploy/features/notify": 154,
    "deploy/features/packages": 1_541,
    "deploy/features/page": 1_395,
    "deploy/features/practice": 318,
    "deploy/features/preload": 927,
    "deploy/features/returned_values": 202,
    "deploy/features/samples": 925,
    "deploy/features/setup": 287,
    "deploy/features/slurm": 1_570,
    "deploy/features/spares": 36,
    "deploy/features/top": 1_574,
    "deploy/features/why": 5_422,
    "deploy/features/written_files": 137,
    "ansible": 2_400,
    "train": 8_935,
}
"""Lower a number when a change removes lines. A change that adds lines to a full package removes others."""
LONGEST_MODULE = 600
MOST_LOADED = {
    "--version": (4, 110),
    "status --help": (37, 4_070),
    "launch --dry-run train.py": (110, 13_300),
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
    places = [*(ROOT / "deploy" / "core").glob("*"), *(ROOT / "deploy" / "features").glob("*")]
    folders = {str(path.relative_to(ROOT)) for path in places if any(path.glob("*.py"))}
    assert folders <= {*MOST}


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
