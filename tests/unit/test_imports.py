"""The packages of the project, and the one way in which imports go between them."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from muster.deploy.core.connect.bootstrap import early_modules, late_modules
from muster.deploy.core.wire.protocol import EARLY, LATE

ROOT = Path(__file__).parents[2]
# A package imports from itself and from those below it.
DEPLOY = (
    *("api", "cli", "slurm", "view", "bench", "check", "jobs"),
    *("launch", "why", "debug", "image", "envs", "data", "adhoc", "connect", "plan", "hosts"),
    *("timings", "agent", "common", "decode", "waits", "interrupts", "errors", "console"),
)
PURE = ("plan", "hosts", "check", "view", "why", "console")
"""Packages that judge and describe: no network, no process, no clock. What they read, they are given."""
IMPURE = {"docker", "fabric", "invoke", "paramiko", "socket", "subprocess", "threading", "time"}
# What these do beside that: a screen knows the time, the tree and the examination are gathered there.
GATHERERS = {
    *("deploy.core.plan.source_tree", "deploy.core.plan.git", "deploy.features.check.measure"),
    *("deploy.core.text.screen", "deploy.core.text.progress", "deploy.core.text.live_line"),
    *("deploy.features.top.app", "deploy.features.top.sources"),
    "deploy.features.why.gather",
}
TRAIN = (
    *("__main__", "demo", "training_loop", "position", "tools", "options"),
    *("checkpoint", "sync", "reporting"),
    *("data", "job", "mpi_backend"),
)


def name_of(path: Path) -> str:
    """`deploy.core.plan.spec` for deploy/core/plan/spec.py."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules(package: str) -> dict[str, Path]:
    return {name_of(path): path for path in sorted((ROOT / package).rglob("*.py"))}


def imports(path: Path) -> set[str]:
    """The absolute names of what a module imports; ours without `muster.`, other people's as they are."""
    package = name_of(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            found |= {name} | {f"{name}.{alias.name}" for alias in node.names}
    return {name.removeprefix("muster.") for name in found}


def package(name: str) -> str:
    """`plan` for deploy.core.plan.spec."""
    return name.split(".")[1] if "." in name else ""


DRIVER = modules("deploy")
TRAINING = modules("train")
Imported = Mapping[str, set[str]]
"""What each module imports."""


@pytest.fixture(scope="module")
def driver() -> Imported:
    return {name: imports(path) for name, path in DRIVER.items()}


@pytest.fixture(scope="module")
def training() -> Imported:
    return {name: imports(path) for name, path in TRAINING.items()}


def offenders(imported: Imported, is_wrong: Callable[[str, str], bool]) -> list[str]:
    """`deploy.core.plan.spec imports torch`, for each import that breaks a rule."""
    return [f"{name} imports {one}" for name, used in imported.items() for one in used if is_wrong(name, one)]


def is_above(order: Sequence[str], name: str, other: str) -> bool:
    """Whether a module's package lies above that of another, in an order from the top."""
    own, its = package(name), package(other)
    return own in order and its in order and order.index(its) < order.index(own)


def test_every_module_of_deploy_is_in_a_package() -> None:
    assert {package(name) for name in DRIVER} == {*DEPLOY, ""}


def test_in_deploy_a_package_imports_only_what_is_below_it(driver: Imported) -> None:
    assert not offenders(driver, lambda name, one: one.startswith("deploy.") and is_above(DEPLOY, name, one))


def test_in_train_a_package_imports_only_what_is_below_it(training: Imported) -> None:
    apart = {name: used for name, used in training.items() if package(name) != "mpi_backend"}
    assert not offenders(apart, lambda name, one: one.startswith("train.") and is_above(TRAIN, name, one))
    assert {package(name) for name in TRAINING} == {*TRAIN, ""}


@pytest.mark.parametrize("which", ["deploy", "train"])
def test_no_two_modules_import_each_other(which: str, request: pytest.FixtureRequest) -> None:
    imported: Imported = request.getfixturevalue({"deploy": "driver", "train": "training"}[which])
    own = {"deploy": DRIVER, "train": TRAINING}[which]
    graph = {name: (used & own.keys()) - {name} for name, used in imported.items()}
    for name in [name for name, path in own.items() if path.name == "__init__.py"]:
        graph[name] = set()  # a package's face is imported before and after what it shows
    assert tuple(TopologicalSorter(graph).static_order())


def test_the_driver_and_the_training_run_without_each_other(driver: Imported, training: Imported) -> None:
    assert not offenders(driver, lambda _, one: one.split(".")[0] in {"torch", "train", "mpi4py"})
    assert not offenders(training, lambda _, one: one.split(".")[0] == "deploy")


def test_no_two_modules_of_train_have_one_name() -> None:
    """The MPI backend is a package on its own: its names are its own."""
    stems = Counter(path.stem for name, path in TRAINING.items() if package(name) != "mpi_backend")
    assert [stem for stem, count in stems.items() if count > 1 and not stem.startswith("__")] == []


def test_what_runs_on_a_host_needs_the_standard_library_alone(driver: Imported) -> None:
    beside = {path.stem for path in (ROOT / "deploy" / "agent").rglob("*.py")}  # in the folder of a job
    known = {*sys.stdlib_module_names, *beside, "__future__"}
    on_hosts = {name: used for name, used in driver.items() if package(name) in {"agent", "common"}}
    assert not offenders(
        on_hosts, lambda _, one: package(one) not in {"agent", "common"} and one.split(".")[0] not in known
    )


def test_an_agent_has_every_module_that_its_parts_import(driver: Imported) -> None:
    """bootstrap.py reads imports without `ast`."""
    early = {name.removeprefix("muster.") for name in early_modules()}
    late = {name.removeprefix("muster.") for name in late_modules()}
    own = {name for name, path in DRIVER.items() if path.name != "__init__.py"}
    needed_early = set.union(*(driver[name] & own for name in early))
    needed_late = set.union(*(driver[name] & own for name in late))
    assert needed_early <= early
    assert needed_late <= early | late


def test_the_core_of_an_agent_imports_no_part_of_a_job(driver: Imported) -> None:
    """They are loaded by the table of core/wire/protocol.py, when a request or a word needs one."""
    parts = {f"deploy.{part.module}" for part in (*EARLY, *LATE) if part.needs == "job"}
    core = {
        f"deploy.core.agent.{name}" for name in ("main", "processes", "job.supervisor", "job.local_socket")
    }
    for _ in range(len(driver)):
        core |= {one for name in core for one in driver[name] if one in driver}
    assert {name.rpartition(".")[0] for name in core} <= {
        *("deploy.core.agent", "deploy.core.agent", "deploy.core.agent", "deploy.core.wire"),
        "deploy.features.packages.on_host",  # the lock of the packages of a job
    }
    assert not core & parts


def test_the_driver_never_imports_the_agent(driver: Imported) -> None:
    own = {name: used for name, used in driver.items() if package(name) not in {"agent", ""}}
    assert not offenders(own, lambda _, one: one.startswith("deploy.core.agent"))


def test_what_judges_and_describes_touches_nothing(driver: Imported) -> None:
    pure = {name: used for name, used in driver.items() if package(name) in PURE and name not in GATHERERS}
    assert not offenders(pure, lambda _, one: one in IMPURE)
