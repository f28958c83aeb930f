"""The OpenSSH client as the way to the nodes: shared connections, host certificates, the same findings."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.start_faults import key_of, known_hosts
from tests.launching import Project
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

SHARED = "Host *\n    ControlMaster auto\n    ControlPath {}/%n\n    ControlPersist 600\n"
# A second sshd of a node, at a port of its own, whose key an authority has signed.
CERTIFIED = """
set -e
cd "$(mktemp -d)"
ssh-keygen -q -t ed25519 -N '' -f authority
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -s authority -I node -h -n certified host.pub
/usr/sbin/sshd -f /dev/null -p 2299 -h "$PWD/host" -o HostCertificate="$PWD/host-cert.pub" \\
    -o AuthorizedKeysFile=/etc/muster/ssh/authorized_keys -o PidFile="$PWD/pid" -o UsePAM=no
until [ -s pid ]; do sleep 0.1; done  # sshd writes it when it listens
cat pid authority.pub
"""


@pytest.fixture
def project(project: Project) -> Project:
    return dataclasses.replace(project, env={**project.env, "MUSTER_SSH": "openssh"})


@pytest.fixture
def own_config(project: Project, cluster: Cluster) -> Iterator[Path]:
    """The SSH configuration of the project, as a file of its own."""
    with known_hosts(project, cluster, "", ""):
        yield project.path / ".muster" / "ssh_config"


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose name leaves room for those of sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_shared_connection_serves_every_command(project: Project, own_config: Path, sockets: Path) -> None:
    own_config.write_text(SHARED.format(sockets) + own_config.read_text())

    def master(node: str, word: str) -> int:
        argv = ["ssh", "-F", str(own_config), "-O", word, node]
        return subprocess.run(argv, capture_output=True, check=False).returncode

    nodes = ("node1", "node2", "node3")
    try:
        assert project.muster("run", "--", "true").returncode == 0
        assert [master(node, "check") for node in nodes] == [0, 0, 0]
        # Whoever logs in again is refused: what follows goes through the connections that are there.
        for identity in (project.path / ".muster").glob("id_*"):
            identity.unlink()
        launched = project.launch("program.py")
        assert launched.status == 0, launched.output
        assert "DONE" in launched.output
    finally:
        for node in nodes:
            master(node, "exit")


def test_a_certificate_is_known(project: Project, own_config: Path, cluster: Cluster) -> None:
    started = cluster.exec("node1", ["sh", "-c", CERTIFIED])
    assert started.returncode == 0, started.stderr
    pid, authority = started.stdout.split("\n", 1)
    try:
        (own_config.parent / "known_hosts").write_text(f"@cert-authority * {authority}")
        words = ("docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
        found = subprocess.run(
            [*words, cluster.container("node1")], capture_output=True, text=True, check=True
        )
        with own_config.open("a") as config:
            config.write(f"Host certified\n    HostName {found.stdout.strip()}\n    HostKeyAlias certified\n")
            config.write(f"    User muster\n    UserKnownHostsFile {own_config.parent}/known_hosts\n")
            config.write(f"    IdentityFile {own_config.parent}/id_ed25519\n")
        (project.path / "hosts.txt").write_text("certified port=2299\n")
        reached = project.muster("run", "--", "echo", "reached")
        assert (reached.returncode, "reached" in reached.stdout) == (0, True), reached.stderr
    finally:
        cluster.exec("node1", ["kill", pid])


@pytest.mark.soak
def test_check_finds_the_same_as_with_paramiko(project: Project, cluster: Cluster) -> None:
    hosts = "node1\nnode2 port=1\nnode3 user=stranger\nnowhere.invalid\n"
    (project.path / "hosts.txt").write_text(hosts)
    with known_hosts(project, cluster, key_of(cluster, "node1"), key_of(cluster, "node2")):
        clients = [
            dataclasses.replace(project, env={**project.env, "MUSTER_SSH": client})
            for client in ("openssh", "paramiko")
        ]
        said = [json.loads(client.muster("check", "--json").stdout) for client in clients]
    ids = [{finding["host"]: finding["id"] for finding in answer["findings"]} for answer in said]
    assert (
        ids[0]
        == ids[1]
        == {
            "node1": "ssh.host-key-changed",
            "node2": "ssh.port-refused",
            "node3": "ssh.login-refused",
            "nowhere.invalid": "ssh.name-unknown",
        }
    )


def test_nothing_is_left_of_a_launch_that_is_interrupted(project: Project, cluster: Cluster) -> None:
    with project.start("program.py", "wait", "0") as launch:
        assert launch.stdout is not None
        for line in launch.stdout:
            if "waiting" in line:
                break
        launch.send_signal(signal.SIGINT)
        launch.communicate(timeout=300)
    assert launch.returncode == 130
    wait_until(
        lambda: not [process for node in cluster.nodes for process in cluster.processes(node)],
        "the end of all processes of the job",
    )
