"""The oldest Python of a host is 3.9, of the driver 3.10: both run a job, where this machine has them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from muster.deploy.core.connect.bootstrap import DEPLOY, early_modules, late_modules
from muster.deploy.core.wire.protocol import ON_DEMAND
from tests.interpreters import interpreter
from tests.launching import ROOT, Project, wait_until_clean

DRIVER = ROOT / ".venv" / "python-3.10" / "bin" / "fab"  # which the Makefile makes
MPIRUN = ROOT / ".venv" / "bin" / "mpirun"
PLACES = ("core/agent", "core/wire", *(f"features/*/{name}" for name in ("on_host", "wire", "in_rank")))
AGENT = [
    path for place in PLACES for kind in ("/**/*.py", ".py") for path in sorted(DEPLOY.glob(place + kind))
]
HOST_FILES = [*AGENT, *(ROOT / "ansible").glob("roles/*/files/*.py")]


def python(version: str) -> str:
    found = interpreter(version)
    if not found:
        pytest.skip(f"no Python {version} here")
    return found


def test_every_file_that_runs_on_a_host_is_read_by_python_3_9() -> None:
    assert len(AGENT) > 20
    script = (
        "import ast, pathlib, sys; [ast.parse(pathlib.Path(one).read_text(), one) for one in sys.argv[1:]]"
    )
    done = subprocess.run(
        [python("3.9"), "-W", "error", "-c", script, *map(str, HOST_FILES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_module_of_the_agent_is_imported_by_python_3_9(tmp_path: Path) -> None:
    (tmp_path / "muster").mkdir()
    (tmp_path / "muster" / "deploy").symlink_to(DEPLOY)
    script = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    late = {name for handler in ON_DEMAND for request in handler.names for name in late_modules(request)}
    done = subprocess.run(
        [python("3.9"), "-W", "error", "-c", script, *early_modules(), *late],
        cwd=tmp_path,  # else `muster` is a folder of the checkout
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("deed", "status"), [pytest.param("", 0, marks=pytest.mark.soak), ("exit", 3)])
def test_a_job_runs_on_a_host_whose_python_is_3_9(project: Project, deed: str, status: int) -> None:
    environment = project.path.parent / "host"
    subprocess.run([python("3.9"), "-m", "venv", "--without-pip", str(environment)], check=True)
    (environment / "bin" / "mpirun").symlink_to(MPIRUN)
    (project.path / "version.py").write_text("import sys; print(list(sys.version_info[:2]), flush=True)\n")
    with (project.path / "version.py").open("a") as file:
        file.write((project.path / "program.py").read_text())
    done = project.launch("--python", f"{environment}/bin/python", "--script", "version.py", f"--args={deed}")
    assert done.status == status, done.output
    for rank in (0, 1):
        log = (done.folder / "logs" / f"rank-{rank:04d}@localhost.out").read_text().splitlines()
        assert json.loads(log[0]) == [3, 9]
    wait_until_clean(done.job)


def test_a_driver_of_python_3_10_launches_and_names_the_rank_that_failed(project: Project) -> None:
    python("3.10")
    assert DRIVER.exists(), "make .venv/python-3.10/installed"
    words = ("launch", "--script", "program.py", "--python", python_of_this_environment())
    done = driver(project, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DONE    2 ranks on 1 host" in done.stdout
    failed = driver(project, *words, "--args=exit")
    assert failed.returncode == 3, failed.stdout + failed.stderr
    assert "FAILED  rank 1 on localhost: exit status 3" in failed.stdout + failed.stderr


@pytest.mark.parametrize("words", [("--list",), ("launch", "--help"), ("status",)])
def test_other_commands_work_on_a_driver_of_python_3_10(project: Project, words: tuple[str, ...]) -> None:
    python("3.10")
    done = driver(project, *words)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def driver(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DRIVER), *words],
        cwd=project.path,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


def python_of_this_environment() -> str:
    return str(Path(ROOT / ".venv" / "bin" / "python"))
