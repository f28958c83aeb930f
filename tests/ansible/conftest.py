"""Hosts for the tests of Ansible, and the order in which the tests share them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.bare_hosts import HAS_TORCH, PATH, ROOTFS, Hosts, Outcome, run
from tests.parallel import LIFE


def missing() -> str | None:
    for command in (("docker", "info"), ("docker", "compose", "version"), ("ssh", "-V")):
        try:
            done = run(*command)
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return f"`{' '.join(command)}`: {done.stderr.strip()}"
    return None if shutil.which("ansible-playbook", path=PATH) else "no ansible-playbook beside this Python"


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the operator's SSH key; every bare host has its public half."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("bare")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "operator"))
    hosts = Hosts(folder)
    if ROOTFS:
        done = run("sh", "-c", 'tar -C "$1" -c . | docker import - "$2"', "-", ROOTFS, hosts.base)
        assert done.returncode == 0, done.stderr
    for service in ("stack", "node1") if HAS_TORCH else ("node1",):
        hosts.compose("build", "--quiet", service, timeout=600)
    try:
        yield folder
    finally:
        hosts.compose("down", "--volumes", "--timeout", "0")


@pytest.fixture(scope="session")
def clock(operator: Path) -> str:
    """The site's time server: a container with chronyd, which setup does not manage."""
    hosts = Hosts(operator)
    hosts.compose("up", "--detach", "--no-deps", "--force-recreate", "--timeout", "0", "clock")
    hosts.await_start("clock")
    install = "apt-get install --yes --no-install-recommends chrony >/dev/null && systemctl stop chrony"
    serve = (
        "printf 'local stratum 8\\nallow\\n' >/run/clock.conf && chronyd -x -f /run/clock.conf && echo serves"
    )
    assert hosts.on("clock", "sh", "-c", f"{install}; {serve}")
    return hosts.container("clock")


@pytest.fixture(scope="session")
def hosts(operator: Path, clock: str) -> Hosts:
    """Two bare hosts, the head and another; the tests make them a cluster, and then bare again."""
    hosts = Hosts(operator, ["node1", "node2"])
    hosts.start(*hosts.names)
    return hosts


@pytest.fixture(scope="session")
def bare(hosts: Hosts) -> dict[str, set[str]]:
    """The traces of the hosts before anything was done to them."""
    return {name: hosts.traces(name) for name in hosts.names}


@pytest.fixture(scope="session")
def set_up(hosts: Hosts, bare: dict[str, set[str]]) -> Outcome:
    """The setup that made the hosts a cluster; with it a test that needs a cluster also runs alone."""
    assert len(bare) == len(hosts.names)  # the traces were recorded before setup
    done = hosts.play("setup")
    assert done.status == 0, done.text
    return done


@pytest.fixture(scope="session")
def joined(hosts: Hosts, bare: dict[str, set[str]], set_up: Outcome) -> Outcome:
    """The setup by which a third host joins them; its operator is an ordinary user with sudo."""
    hosts.start("node3", login="op")
    bare["node3"] = hosts.traces("node3")
    hosts.names.append("node3")
    done = hosts.play("setup")
    assert done.status == 0, done.text
    return done


@pytest.fixture(scope="module")
def newcomer(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """One bare host in its own cluster; its operator is an ordinary user with sudo."""
    hosts = Hosts(tmp_path_factory.mktemp("newcomer"), ["node5"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.start("node5", login="op")
    return hosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        if "operator" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            # Against what hangs: a test with several setups of environments or images takes half an hour
            # on a busy machine.
            item.add_marker(pytest.mark.timeout(3600))
    order = {name: number for number, name in enumerate(LIFE)}  # they share hosts; each file also runs alone
    ours.sort(key=lambda item: order.get(item.path.stem, len(LIFE)))
    places = [number for number, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    for place, item in zip(places, ours, strict=True):
        items[place] = item
