"""The packages of the project, and the one way in which imports go between them."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from muster.deploy.common.protocol import LATE_IMPORTS
from muster.deploy.connect.bootstrap import early_modules, late_modules

ROOT = Path(__file__).parents[2]
# A package imports from itself and from those below it.
DEPLOY = (
    *("api", "cli", "slurm", "view", "bench", "check", "jobs"),
    *("launch", "why", "debug", "image", "envs", "data", "adhoc", "roster", "connect", "plan", "hosts"),
    *("timings", "agent", "common", "decode", "waits", "interrupts", "errors", "console"),
)
PURE = ("plan", "hosts", "check", "view", "why", "console")
"""Packages that judge and describe: no network, no process, no clock. What they read, they are given."""
IMPURE = {"docker", "fabric", "invoke", "paramiko", "socket", "subprocess", "threading", "time"}
# What these do beside that: a screen knows the time, the tree and the examination are gathered there.
GATHERERS = {
    *("deploy.plan.source_tree", "deploy.plan.git", "deploy.check.measure"),
    *("deploy.console.screen", "deploy.console.progress", "deploy.console.live_line"),
    *("deploy.view.top.app", "deploy.view.top.sources"),
    "deploy.why.gather",
}
TRAIN = (
    *("__main__", "demo", "training_loop", "position", "tools", "options"),
    *("checkpoint", "sync", "reporting"),
    *("data", "job", "mpi_backend"),
)


def name_of(path: Path) -> str:
    """`deploy.plan.spec` for deploy/plan/spec.py."""
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
    """`plan` for deploy.plan.spec."""
    return name.split(".")[1] if "." in name else ""


def test_every_module_of_deploy_is_in_a_package() -> None:
    assert {package(name) for name in modules("deploy")} == {*DEPLOY, ""}


DRIVER = modules("deploy")
TRAINING = modules("train")


@pytest.mark.parametrize("name", DRIVER)
def test_in_deploy_a_package_imports_only_what_is_below_it(name: str) -> None:
    if package(name) in DEPLOY:
        allowed = DEPLOY[DEPLOY.index(package(name)) :]
        used = {package(one) for one in imports(DRIVER[name]) if one.startswith("deploy.")}
        assert used & set(DEPLOY) <= set(allowed)


@pytest.mark.parametrize("package", ["deploy", "train"])
def test_no_two_modules_import_each_other(package: str) -> None:
    own = modules(package)
    graph = {name: (imports(path) & own.keys()) - {name} for name, path in own.items()}
    for name in [name for name, path in own.items() if path.name == "__init__.py"]:
        graph[name] = set()  # a package's face is imported before and after what it shows
    assert tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("name", DRIVER)
def test_deploy_runs_without_torch_and_without_train(name: str) -> None:
    assert not {one for one in imports(DRIVER[name]) if one.split(".")[0] in {"torch", "train", "mpi4py"}}


@pytest.mark.parametrize("name", [name for name in TRAINING if package(name) not in {"mpi_backend", ""}])
def test_in_train_a_package_imports_only_what_is_below_it(name: str) -> None:
    allowed = TRAIN[TRAIN.index(package(name)) :]
    used = {package(one) for one in imports(TRAINING[name]) if one.startswith("train.")}
    assert used <= {*allowed, ""}


def test_no_two_modules_of_train_have_one_name() -> None:
    """The MPI backend is a package on its own: its names are its own."""
    stems = Counter(path.stem for name, path in TRAINING.items() if package(name) != "mpi_backend")
    assert [stem for stem, count in stems.items() if count > 1 and not stem.startswith("__")] == []


@pytest.mark.parametrize("name", TRAINING)
def test_train_runs_without_deploy(name: str) -> None:
    assert not {one for one in imports(TRAINING[name]) if one.split(".")[0] == "deploy"}


@pytest.mark.parametrize("name", [name for name in DRIVER if package(name) in {"agent", "common"}])
def test_what_runs_on_a_host_needs_the_standard_library_alone(name: str) -> None:
    beside = {path.stem for path in (ROOT / "deploy" / "agent").rglob("*.py")}  # in the folder of a job
    for one in imports(DRIVER[name]):
        ours = package(one) in {"agent", "common"}
        assert ours or one.split(".")[0] in {*sys.stdlib_module_names, *beside, "__future__"}, one


def test_an_agent_has_every_module_that_its_parts_import() -> None:
    """And it imports none of the late ones at its start. bootstrap.py reads imports without `ast`."""
    early = {name.removeprefix("muster.") for name in early_modules()}
    late = {name.removeprefix("muster.") for name in late_modules()}
    own = {name for name, path in DRIVER.items() if path.name != "__init__.py"}
    needed_early = set.union(*(imports(DRIVER[name]) & own for name in early))
    needed_late = set.union(*(imports(DRIVER[name]) & own for name in late))
    assert needed_early - early == {f"deploy.{module}" for module in LATE_IMPORTS.values()}
    assert needed_late <= early | late


@pytest.mark.parametrize("name", [name for name in DRIVER if package(name) not in {"agent", ""}])
def test_the_driver_never_imports_the_agent(name: str) -> None:
    assert not {one for one in imports(DRIVER[name]) if one.startswith("deploy.agent")}


@pytest.mark.parametrize("name", [name for name in DRIVER if package(name) in PURE and name not in GATHERERS])
def test_what_judges_and_describes_touches_nothing(name: str) -> None:
    assert not imports(DRIVER[name]) & IMPURE
