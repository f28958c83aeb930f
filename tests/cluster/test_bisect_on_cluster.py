"""`muster check --bisect` on three containers: a host whose ranks never join, a pair that fails together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.launching import Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

pytestmark = pytest.mark.soak  # each all_reduce that fails takes its 20 s
Plant = Callable[[str, str], None]
SITE = "$(python3 -m site --user-site)"
HANGS = """
import os, sys, time
if int(os.environ.get("RANK", "-1")) >= 0 and "sweep" in " ".join(sys.orig_argv) and {when}:
    time.sleep(600)
"""


@pytest.fixture
def plant(cluster: Cluster) -> Iterator[Plant]:
    """Lets the ranks of a node hang before they join, under a condition on the world."""

    def hang(node: str, when: str) -> None:
        text = HANGS.format(when=when)
        done = cluster.ssh(node, f"mkdir -p {SITE} && cat > {SITE}/usercustomize.py <<'END'\n{text}\nEND")
        assert done.returncode == 0, done.stderr

    yield hang
    for node in cluster.nodes:
        cluster.ssh(node, f"rm -rf {SITE}/usercustomize.py {SITE}/__pycache__")


def test_healthy_hosts_are_not_accused(project: Project) -> None:
    done = project.fab("check", "--bisect", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all_reduce of node[1-3]: works\n" in done.stderr
    assert done.stderr.count("all_reduce of") == 1


@pytest.mark.parametrize("node", ["node1", "node2", "node3"])
def test_a_host_with_which_every_collective_hangs_is_named(project: Project, plant: Plant, node: str) -> None:
    plant(node, "True")
    done = project.fab("check", "--bisect", timeout=600)
    assert done.returncode == 3, done.stdout + done.stderr
    accused = re.findall(r"^ERROR +(node\d): every all_reduce with it fails", done.stdout, re.MULTILINE)
    assert accused == [node], done.stdout + done.stderr


def test_a_pair_that_fails_together_is_named(project: Project, plant: Plant) -> None:
    plant("node3", "os.environ['MASTER_ADDR'] == __import__('socket').gethostbyname('node1')")
    done = project.fab("check", "--bisect", timeout=600)
    assert done.returncode == 3, done.stdout + done.stderr
    pair = re.findall(
        r"^ERROR +(node\d): an all_reduce with (node\d) fails, and each of them", done.stdout, re.MULTILINE
    )
    assert [{*each} for each in pair] == [{"node1", "node3"}], done.stdout + done.stderr
