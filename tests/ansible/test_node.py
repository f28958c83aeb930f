"""A bare host becomes a node container with an engine of its own, runs a job in it, and is bare again.

Only where BARE_NODE=1 asks for it: the engine inside the host is downloaded, and to copy and unpack the image
takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import Hosts, run
from tests.ansible.test_setup import RANKS, launch
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "muster:cpu"
CHECKS = {
    *("ssh_trust.pairs", "ssh_trust.unknown_host_key", "ssh_trust.wrong_key", "ssh_trust.password"),
    *("ssh_trust.driver", "ssh_trust.finished"),
    *("time_sync.synchronised", "time_sync.spread", "time_sync.alone"),
    *("container_engine.answers", "container_engine.packages", "node.container", "node.unit"),
}

pytestmark = pytest.mark.skipif(os.environ.get("BARE_NODE") != "1", reason="BARE_NODE=1 runs it")


@pytest.fixture(scope="module")
def engine(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A bare host on which an engine can run, and the image as a file."""
    assert run("docker", "image", "inspect", IMAGE).returncode == 0, f"no image {IMAGE}: docker compose build"
    hosts = Hosts(tmp_path_factory.mktemp("engine"), ["node6"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    archive = hosts.folder / "image.tar"
    run("docker", "save", "--output", str(archive), IMAGE, timeout=120)
    hosts.variables |= {"muster_stack": "node", "node_image": IMAGE, "node_image_archive": str(archive)}
    hosts.start("node6")
    hosts.on("node6", "chmod", "710", "/var/lib/docker")  # a mount point, which no teardown can remove
    yield hosts
    archive.unlink()


@pytest.fixture(scope="module")
def before(engine: Hosts) -> set[str]:
    return engine.traces("node6")


def test_setup_brings_an_engine_and_the_node_container(engine: Hosts, before: set[str]) -> None:
    done = engine.play("setup")
    assert done.status == 0, done.text
    done = engine.play("setup")
    assert (done.status, done.changed) == (0, 0), done.text
    done = engine.play("verify")
    assert done.status == 0, done.text
    assert {check["id"] for check in engine.checks()} == CHECKS


def test_an_account_of_the_host_with_the_number_of_the_containers_user_has_none_of_its_keys(
    engine: Hosts,
) -> None:
    key = "/etc/muster/ssh/id_ed25519"
    assert engine.on("node6", "id", "--user", "op") == "1000\n"
    assert engine.on("node6", "stat", "--format=%u", key) == "1000\n"
    assert not engine.on("node6", "runuser", "--user", "op", "--", "cat", key)


def test_a_job_runs_in_it_with_no_further_step(engine: Hosts, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = launch(engine, tmp_path, "--script", "ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 1 on node6") >= 2


def test_it_comes_back_with_an_engine_that_was_stopped(engine: Hosts) -> None:
    engine.on("node6", "systemctl", "stop", "docker.socket", "docker.service")
    assert engine.on("node6", "systemctl", "is-active", "muster-node") == "inactive\n"
    engine.on("node6", "systemctl", "start", "docker.service")
    wait_until(lambda: engine.driver("node6", "echo in").stdout, "the driver's way in", patience=200.0)


def test_teardown_of_a_node_leaves_no_trace(engine: Hosts, before: set[str]) -> None:
    done = engine.play("teardown")
    assert done.status == 0, done.text
    after = engine.traces("node6")
    assert (before - after, after - before) == (set(), set())
    done = engine.play("verify", verify_state="absent", verify_json=str(engine.folder / "report.json"))
    assert done.status == 0, done.text
