"""`muster launch --requirements` on hosts that reach no index: the wheels come from here, host to host."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import NODES, Cluster
from tests.launching import Project
from tests.packages import make_wheel, require


@pytest.fixture
def packaged(project: Project) -> Project:
    make_wheel(project.path / "wheels", "greeting", "1.5")
    require(project.path, "greeting")
    (project.path / "uses.py").write_text("import greeting, sys; print(greeting.VERSION, sys.prefix)\n")
    return project


@pytest.mark.soak
def test_hosts_without_an_index_get_the_packages_from_here_once(packaged: Project, cluster: Cluster) -> None:
    words = ("--requirements", "requirements.txt", "--system-torch", "--script", "uses.py")
    first = packaged.launch(*words)
    assert first.status == 0, first.output
    for node in NODES:
        assert f"{node}: 1 package, made in" in first.output
    printed = [log.read_text().split() for log in sorted((first.folder / "logs").glob("rank-*.out"))]
    assert len(printed) == 6
    assert {version for version, _ in printed} == {"1.5"}
    (prefix,) = {prefix for _, prefix in printed}
    listed = packaged.muster("env.list", "--json")
    assert {host: [*known] for host, known in json.loads(listed.stdout).items()} == {
        node: [prefix.rpartition("/")[2]] for node in NODES
    }
    cluster.exec("node2", ("rm", f"{prefix}/muster.json"))  # as if it had been interrupted there
    second = packaged.launch(*words)
    assert second.status == 0, second.output
    assert [node for node in NODES if f"{node}: 1 package, made in" in second.output] == ["node2"]
    removed = packaged.muster("env.remove")
    assert removed.stdout.count("1 environment removed") == 3, removed.stderr
