"""The layers of the project, and the one way in which imports go between them."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from muster.deploy.core.connect.bootstrap import early_modules, late_modules
from muster.deploy.core.wire.protocol import AT_START, ON_DEMAND

ROOT = Path(__file__).parents[2]
# Of deploy/core. A layer imports from itself and from those below it.
CORE = (
    ("job",),
    ("plan",),
    ("content", "connect"),
    ("hosts",),
    ("timings", "waits", "interrupts", "decode", "errors", "agent"),
    ("text", "wire"),
)
ON_HOSTS = {"agent", "in_rank", "on_host", "wire"}
"""The folders and modules that go to hosts: of core/, and of each feature."""
IMPURE = {"docker", "fabric", "invoke", "paramiko", "socket", "subprocess", "threading", "time"}
PURE = (
    "core.plan",
    "core.hosts",
    "core.text",
    *(f"features.{name}" for name in ("check", "page", "top", "why")),
)
"""Packages that judge and describe: no network, no process, no clock. What they read, they are given."""
# What these do beside that: a screen knows the time, the tree and the examination are gathered there.
GATHERERS = {
    *("core.plan.source_tree", "core.plan.git", "features.why.gather"),
    *("core.text.screen", "core.text.progress", "core.text.live_line"),
    *("features.top.app", "features.top.sources", "features.why.diagnosis", "features.why.kernel"),
    *(f"features.why.{name}" for name in ("pace_watch", "stall_watch")),
}
FEATURE_IMPORTS_FEATURE: Mapping[str, str] = {
    "check bench": "check --bench measures links and hosts, and shows the slow ones as findings",
    "check leases": "check tells GPUs that jobs lease from those that other processes use",
}
"""The features that import another, each with the reason. Only shorten it."""
ALL = {"all_features.py", "all_handlers.py", "all_options.py"}
"""The lists of all features, which are no feature."""
TRAIN = (
    *("__main__", "demo", "training_loop", "options"),
    *("checkpoint", "replicas", "reporting"),
    *("data", "job", "mpi_backend"),
)


def name_of(path: Path) -> str:
    """`deploy.core.plan.spec` for deploy/core/plan/spec.py."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules(package: str) -> dict[str, Path]:
    return {name_of(path): path for path in sorted((ROOT / package).rglob("*.py"))}


BENCH = "deploy.features.bench.programs"
"""What the ranks of a benchmark run: programs on muster.train, which the driver only sends."""


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


def top(name: str) -> str:
    """`core` for deploy.core.plan.spec, `demo` for train.demo.run."""
    return name.split(".")[1] if "." in name else ""


def below(name: str, folder: str) -> str:
    """`plan` for deploy.core.plan.spec and `core`, `why` for deploy.features.why.stall and `features`."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == [folder] and len(parts) > 2 else ""


def goes_to_hosts(name: str) -> bool:
    inner = name.split(".")[2:]
    return name == "deploy.features.all_handlers" or bool(
        ON_HOSTS & {*(inner if top(name) == "core" else inner[1:])}
    )


PROGRAMS = modules(BENCH.replace(".", "/"))
DRIVER = {name: path for name, path in modules("deploy").items() if name not in PROGRAMS}
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


def is_above(order: Sequence[str], own: str, its: str) -> bool:
    """Whether a module's package lies above that of another, in an order from the top."""
    return own in order and its in order and order.index(its) < order.index(own)


def test_every_module_of_deploy_is_in_its_place() -> None:
    assert {top(name) for name in DRIVER} == {"api", "cli", "core", "features", ""}
    assert {below(name, "core") for name in DRIVER} == {"", *(name for layer in CORE for name in layer)}
    assert {path.name for path in (ROOT / "deploy" / "features").glob("*.py")} == {"__init__.py", *ALL}


def test_in_the_core_a_layer_imports_only_what_is_below_it(driver: Imported) -> None:
    layer = {name: str(number) for number, names in enumerate(CORE) for name in names}
    order = [str(number) for number in range(len(CORE))]
    assert not offenders(
        driver,
        lambda name, one: is_above(
            order, layer.get(below(name, "core"), ""), layer.get(below(one, "core"), "")
        ),
    )


def test_only_what_is_above_imports_commands(driver: Imported) -> None:
    """A feature's command lies with the feature, and belongs to the command line."""
    inner = {name: used for name, used in driver.items() if top(name) in {"core", "features"}}
    inner = {name: used for name, used in inner.items() if not name.split(".")[-1].startswith("command")}
    assert not offenders(inner, lambda _, one: one.startswith(("deploy.cli", "deploy.api")))
    rest = {name: used for name, used in driver.items() if top(name) == "cli"}
    assert not offenders(rest, lambda _, one: one.startswith("deploy.api"))


def test_the_core_imports_no_feature(driver: Imported) -> None:
    own = {name: used for name, used in driver.items() if top(name) == "core"}
    assert not offenders(own, lambda _, one: one.startswith("deploy.features"))


def test_no_feature_imports_another(driver: Imported) -> None:
    """But for a list that only gets shorter. The list of all features is no feature."""
    found: dict[str, set[str]] = {}
    for name, used in driver.items():
        own = below(name, "features")
        if own and f"{own}.py" not in ALL:
            others = {below(one, "features") for one in used} - {"", own}
            found[own] = found.get(own, set()) | others
    pairs = {f"{name} {other}" for name, others in found.items() for other in others}
    listed = {pair for pair in FEATURE_IMPORTS_FEATURE if pair.split()[0] in found}  # one may be deleted
    assert pairs == listed


def test_in_train_a_package_imports_only_what_is_below_it(training: Imported) -> None:
    apart = {name: used for name, used in training.items() if top(name) != "mpi_backend"}
    assert not offenders(
        apart, lambda name, one: one.startswith("train.") and is_above(TRAIN, top(name), top(one))
    )
    assert {top(name) for name in TRAINING} == {*TRAIN, ""}


@pytest.mark.parametrize("which", ["deploy", "train"])
def test_no_two_modules_import_each_other(which: str, request: pytest.FixtureRequest) -> None:
    imported: Imported = request.getfixturevalue({"deploy": "driver", "train": "training"}[which])
    own = {"deploy": DRIVER, "train": TRAINING}[which]
    graph = {name: (used & own.keys()) - {name} for name, used in imported.items()}
    for name in [name for name, path in own.items() if path.name == "__init__.py"]:
        graph[name] = set()  # a package's face is imported before and after what it shows
    assert tuple(TopologicalSorter(graph).static_order())


def test_the_driver_and_the_training_run_without_each_other(driver: Imported, training: Imported) -> None:
    assert not offenders(
        driver, lambda _, one: one.split(".")[0] in {"torch", "train", "mpi4py"} or one.startswith(BENCH)
    )
    assert not offenders(training, lambda _, one: one.split(".")[0] == "deploy")


def test_the_programs_of_bench_import_no_part_of_the_driver() -> None:
    used = {name: imports(path) for name, path in PROGRAMS.items()}
    assert used
    assert not offenders(used, lambda _, one: one.startswith("deploy.") and not one.startswith(BENCH))


def test_no_two_modules_of_train_have_one_name() -> None:
    """The MPI backend is a package on its own: its names are its own."""
    stems = Counter(path.stem for name, path in TRAINING.items() if top(name) != "mpi_backend")
    assert [stem for stem, count in stems.items() if count > 1 and not stem.startswith("__")] == []


def test_what_runs_on_a_host_needs_the_standard_library_alone(driver: Imported) -> None:
    on_hosts = {name: used for name, used in driver.items() if goes_to_hosts(name)}
    beside = {DRIVER[name].stem for name in on_hosts}  # in the folder of a job
    known = {*sys.stdlib_module_names, *beside, "__future__"}
    assert not offenders(on_hosts, lambda _, one: not goes_to_hosts(one) and one.split(".")[0] not in known)


def test_an_agent_has_every_module_that_its_handlers_import(driver: Imported) -> None:
    """bootstrap.py reads imports without `ast`."""
    own = {name for name, path in DRIVER.items() if path.name != "__init__.py"}
    early = {name.removeprefix("muster.") for name in early_modules()}
    for sent in (set[str](), *({*late_modules(name)} for handler in ON_DEMAND for name in handler.names)):
        there = early | {name.removeprefix("muster.") for name in sent}
        assert set.union(*(driver[name] & own for name in there)) <= there


def test_the_core_of_an_agent_imports_no_part_of_a_job(driver: Imported) -> None:
    """They are loaded by the table of core/wire/protocol.py, when a request or a word needs one."""
    handlers = {f"deploy.{handler.module}" for handler in (*AT_START, *ON_DEMAND) if handler.needs == "job"}
    core = {f"deploy.core.agent.{name}" for name in ("main", "processes", "supervisor", "local_socket")}
    for _ in range(len(driver)):
        core |= {one for name in core for one in driver[name] if one in driver}
    assert not core & handlers


def test_the_driver_imports_nothing_that_is_of_hosts_alone(driver: Imported) -> None:
    """`wire` is of both sides."""
    own = {name: used for name, used in driver.items() if not goes_to_hosts(name)}
    assert not offenders(own, lambda _, one: goes_to_hosts(one) and "wire" not in one.split("."))


def test_what_judges_and_describes_touches_nothing(driver: Imported) -> None:
    pure = {
        name: used
        for name, used in driver.items()
        if name.removeprefix("deploy.").startswith(PURE)
        and not goes_to_hosts(name)
        and name.removeprefix("deploy.") not in GATHERERS
        and not name.split(".")[-1].startswith("command")
    }
    assert not offenders(pure, lambda _, one: one in IMPURE)
