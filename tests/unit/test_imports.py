"""The layers of the project, as its imports have them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Inside deploy, imports go one way: a module imports only what stands before it.
ORDER = (
    "errors",
    "hostfile",
    "tree",
    "facts",
    "health",
    "image",
    "image.versions",
    "image.compatibility",
    "image.bake",
    "image.capabilities",
    "image.build",
    "image.engine",
    "image.relay",
    "image.archive",
    "openmpi",
    "torchrun",
    "fold",
    "plan",
    "request",
    "job",
    "result",
    "restart",
    "together",
    "screen",
    "records",
    "report",
    "checks.finding",
    "checks.host",
    "checks.image",
    "checks.group",
    "checks.network",
    "checks",
    "checks.report",
    "bootstrap",
    "channel",
    "jobs",
    "job_table",
    "transports.process",
    "transports.local",
    "transports.openssh",
    "transports.route",
    "transports.proxy",
    "transports.trust",
    "transports.ssh",
    "transports",
    "cluster",
    "image.push",
    "image.report",
    "examine",
    "deliver",
    "stacks",
    "execute.deadlines",
    "execute.state",
    "execute.heartbeat",
    "execute.start",
    "execute.stall",
    "execute.reports",
    "execute.run",
    "execute",
    "attempts",
    "fanout",
    "transfer",
    "detached",
    "detach",
    "tasks.shared",
    "tasks.words",
    "tasks.check",
    "tasks.hosts",
    "tasks.jobs",
    "tasks.launch",
    "tasks.stacks",
    "tasks.image",
    "tasks",
)
# The same inside train/mpi_backend.
MPI_BACKEND = (
    "errors",
    "caller",
    "buffers",
    "half",
    "reduction",
    "exchange",
    "progress",
    "collectives",
    "sparse",
    "agreement",
    "profiling",
    "work",
    "lane",
    "board",
    "watchdog",
    "point_to_point",
    "messages",
    "group",
    "create",
    "register",
)
# So in train: a module imports those before it, and the others of its own folder.
TRAIN = (
    "errors",
    "slurm",
    "ranks",
    "mpi",
    "failure",
    "spawn",
    "hardware",
    "backend",
    "rendezvous",
    "crosscheck",
    "mpi_backend",
    "group",
    "data",
    "architectures",
    "model",
    "sampler",
    "schedule",
    "metrics",
    "progress",
    "report",
    "outputs",
    "checkpoint",
    "sync",
    "config",
    "trainer",
    "loop",
    "main",
    "__main__",
    "benchmark",
    "tool",
    "collectives",
    "probe",
)
PURE = (
    "errors",
    "hostfile",
    "facts",
    "health",
    "openmpi",
    "torchrun",
    "fold",
    "plan",
    "job",
    "result",
    "restart",
    "together",
    "checks.finding",
    "checks.host",
    "checks.image",
    "checks.group",
    "checks.network",
    "checks/__init__",
    "checks.report",
    "image.versions",
    "image.compatibility",
    "image.bake",
    "image.capabilities",
    "image.relay",
)
IMPURE = {"docker", "os", "socket", "subprocess", "threading", "time", "fabric", "invoke", "paramiko"}
# Of the keeper's modules, those that the driver uses too.
SHARED = {"deploy.node.wire", "deploy.node.jobs", "deploy.node.store", "deploy.node.files"}
ON_THE_NODE = (
    *("wire", "facts", "health", "meeting", "store", "processes"),
    *("memory", "ranks", "stacks", "door", "jobs", "detaching", "work"),
    *("commands", "files", "cleaning", "engine", "blobs", "images", "parts", "agent"),
)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules("train"), ids=name_of)
def test_train_runs_without_deploy(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] == "deploy"}


def test_every_module_of_the_mpi_backend_has_its_place_in_the_order() -> None:
    assert {path.stem for path in modules("train/mpi_backend")} - {"__init__"} == set(MPI_BACKEND)


@pytest.mark.parametrize("name", MPI_BACKEND)
def test_imports_of_the_mpi_backend_go_one_way(name: str) -> None:
    allowed = {f"train.mpi_backend.{one}" for one in MPI_BACKEND[: MPI_BACKEND.index(name)]}
    used = {one for one in imports(ROOT / "train" / "mpi_backend" / f"{name}.py") if "mpi_backend." in one}
    assert not {one for one in used if one not in allowed and one.rpartition(".")[0] not in allowed}


def test_every_module_of_train_has_its_place_in_the_order() -> None:
    assert {path.relative_to(ROOT / "train").parts[0].removesuffix(".py") for path in modules("train")} == {
        *TRAIN,
        "__init__",
    }


@pytest.mark.parametrize("path", modules("train"), ids=name_of)
def test_imports_of_train_go_one_way(path: Path) -> None:
    own = name_of(path).split(".")[1:2]
    allowed = TRAIN[: TRAIN.index(own[0]) + 1] if own else ()
    used = {one.split(".")[1] for one in imports(path) if one.startswith("train.")}
    assert used <= set(allowed)


@pytest.mark.parametrize("path", modules("deploy"), ids=name_of)
def test_deploy_runs_without_torch(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] in {"torch", "train", "mpi4py", "numpy"}}


def test_every_module_of_deploy_has_its_place_in_the_order() -> None:
    here = {name_of(path).removeprefix("deploy.") for path in modules("deploy") if "node" not in path.parts}
    assert here - {"deploy"} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_imports_go_one_way(name: str) -> None:
    path = ROOT / "deploy" / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    allowed = {f"deploy.{one}" for one in ORDER[: ORDER.index(name)]} | {"deploy", *SHARED}
    used = {one for one in imports(path) if one.startswith("deploy.")}
    assert not {one for one in used if one not in allowed and one.rpartition(".")[0] not in allowed}


@pytest.mark.parametrize("name", PURE)
def test_what_plans_touches_nothing(name: str) -> None:
    assert not imports(ROOT / "deploy" / f"{name.replace('.', '/')}.py") & IMPURE


@pytest.mark.parametrize("name", [*ON_THE_NODE, "rank", "rsh"])
def test_what_runs_on_a_node_needs_the_standard_library_alone(name: str) -> None:
    before = ON_THE_NODE[: ON_THE_NODE.index(name)] if name in ON_THE_NODE else ()
    allowed = {f"deploy.node.{one}" for one in before}
    for one in imports(ROOT / "deploy" / "node" / f"{name}.py"):
        own = one in allowed or one.rpartition(".")[0] in allowed
        assert own or one.split(".")[0] in {*sys.stdlib_module_names, "__future__"}, one


def test_no_command_loads_what_it_does_not_use() -> None:
    script = (
        "import sys, deploy.tasks; sys.exit(str({'docker', 'requests', 'urllib3'} & {*sys.modules} or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
