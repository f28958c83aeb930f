"""The practice cluster as `muster cluster up` of a wheel makes it, and a project with names of ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import NODES, Cluster
from tests.hostile import make_hostile
from tests.parallel import NUMBER
from tests.wheel import Installed, build_wheel, install

pytestmark = pytest.mark.timeout(900)
IMAGE = f"muster:wheel-test{NUMBER or ''}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(build_wheel(tmp_path_factory.mktemp("built")), tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def env(cluster: Cluster) -> dict[str, str]:
    """A cluster of its own beside that of the other tests, of an image of its own; its layers are theirs."""
    ports = {f"MUSTER_PORT{number}": str(2410 + 10 * NUMBER + number) for number in (1, 2, 3)}
    return {**ports, "COMPOSE_PROJECT_NAME": f"muster-wheel{NUMBER or ''}", "MUSTER_IMAGE": IMAGE}


@pytest.fixture(scope="module")
def project(
    installed: Installed, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A project with files of all our names, after `muster cluster up` there.

    `up` would build the image that the other tests use; this one has a name of its own, and is built here.
    """
    place = tmp_path_factory.mktemp("project")
    make_hostile(place)
    build = ("docker", "compose", "--file", str(installed.package / "compose.yaml"), "build", "--quiet")
    keys = {"MUSTER_DIR": str(place)}
    subprocess.run(
        build, env={**os.environ, **env, **keys}, check=True, timeout=600, stdin=subprocess.DEVNULL
    )
    try:
        up = installed.muster("cluster", "up", cwd=place, timeout=600, env=env)
        assert up.returncode == 0, up.stdout + up.stderr
        assert "muster launch --hosts hosts.txt" in up.stdout
        yield place
    finally:
        down = installed.muster("cluster", "down", cwd=place, env=env)
        subprocess.run(["docker", "image", "rm", IMAGE], capture_output=True, check=False)
        assert down.returncode == 0, down.stderr
        assert sorted(path.name for path in (place / ".muster").iterdir()) == [".gitignore"]


@pytest.mark.soak
def test_the_cluster_is_fit_by_the_hosts_file_that_was_written(installed: Installed, project: Path) -> None:
    done = installed.muster("check", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == [*NODES]


@pytest.mark.soak
def test_every_node_is_healthy(project: Path, env: dict[str, str]) -> None:
    """The other tests' nodes have no health check (quiet.yaml); `muster cluster up` waits for this one."""
    containers = [f"{env['COMPOSE_PROJECT_NAME']}-{node}-1" for node in NODES]
    inspect = ("docker", "inspect", "--format", "{{.State.Health.Status}}", *containers)
    done = subprocess.run(inspect, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["healthy"] * len(NODES)


# On one host tests/local proves the same under both launchers; here a dozen processes load PyTorch.
@pytest.mark.soak
def test_project_names_are_its_own_on_each_host(installed: Installed, project: Path, tmp_path: Path) -> None:
    words = ("launch", "--start-timeout", "300", "--launcher", "torchrun", "--runs", str(tmp_path))
    own = installed.muster(*words, "train.py", cwd=project)
    assert own.returncode == 0, own.stdout + own.stderr
    for rank in range(6):
        (log,) = tmp_path.glob(f"*/logs/rank-{rank:04d}@node{rank // 2 + 1}.out")
        assert log.read_text().splitlines() == [f"{rank} True", "library ../lib/muster/train/__init__.py"]
    # Our own training program, one rank on each host: names are what matters, not how well it learns.
    (project / "one-each.txt").write_text("".join(f"{node} slots=1\n" for node in NODES))
    one_each = ("--hosts", "one-each.txt", "--", "--epochs", "1", "--limit", "64")
    ours = installed.muster(*words, *one_each, cwd=project)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert " ranks=3 hosts=3 backend=gloo launcher=torchrun " in ours.stdout.splitlines()[-1]


def test_a_hosts_file_of_other_hosts_is_refused_and_kept(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("gpu1 slots=8\n")
    done = installed.muster("cluster", "up", cwd=tmp_path)
    assert done.returncode == 2
    assert "gpu1 is not a node of the practice cluster" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.txt"]
