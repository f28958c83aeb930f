"""The size of the code: lines of each package, which may only fall."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = {
    "deploy/adhoc": 520,
    "deploy/agent": 10_870,
    "deploy/api": 700,
    "deploy/bench": 980,
    "deploy/check": 1_320,
    "deploy/cli": 6_390,
    "deploy/common": 3_020,
    "deploy/connect": 5_220,
    "deploy/console": 1_000,
    "deploy/data": 620,
    "deploy/debug": 300,
    "deploy/envs": 1_030,
    "deploy/hosts": 1_440,
    "deploy/image": 1_030,
    "deploy/jobs": 4_720,
    "deploy/launch": 2_770,
    "deploy/plan": 2_460,
    "deploy/slurm": 1_390,
    "deploy/view": 3_420,
    "deploy/why": 2_340,
    "train": 11_530,
}
"""Lower a number when a change removes lines. A change that adds lines to a full package removes others."""
LONGEST_MODULE = 600


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
