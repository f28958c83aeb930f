"""Faults that are there before a job starts, as a table: what a launch says of them, and how soon."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.launching import Project
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


@dataclass(frozen=True, kw_only=True)
class StartFault:
    """One row of the table: the launch must end with this status within so many seconds, and say so."""

    title: str
    within: float
    says: str
    """A regular expression."""
    status: int = 3
    hosts: str = "node1 slots=2\nnode2 slots=2\nnode3 slots=2\n"
    words: tuple[str, ...] = ()
    there: Callable[[Project, Cluster], AbstractContextManager[object]] = lambda project, cluster: (
        nullcontext()
    )


@contextmanager
def known_hosts(project: Project, cluster: Cluster, old: str, new: str) -> Iterator[None]:
    """A `.muster` of the project's own, with something else in its known hosts."""
    own = project.path / ".muster"
    own.unlink()
    own.mkdir()
    for name in ("ssh_config", "known_hosts", "id_ed25519"):
        text = (cluster.muster_dir / name).read_text()
        changed = text.replace(str(cluster.muster_dir), str(own))
        (own / name).write_text(changed.replace(old, new) if name == "known_hosts" else changed)
        (own / name).chmod(0o600)
    yield


def key_of(cluster: Cluster, node: str) -> str:
    lines = (cluster.muster_dir / "known_hosts").read_text().splitlines()
    return next(line.split()[2] for line in lines if node in line)


@contextmanager
def replaced(cluster: Cluster, node: str, path: str, script: str | None) -> Iterator[None]:
    """Another file in place of one of a node; None for none at all."""
    cluster.exec(node, ["mv", path, f"{path}.away"], user="root")
    try:
        if script is not None:
            cluster.exec(node, ["sh", "-c", f"cat > {path}; chmod 755 {path}"], user="root", stdin=script)
        yield
    finally:
        cluster.exec(node, ["mv", f"{path}.away", path], user="root")


@contextmanager
def node3_on_tmpfs(options: str, project: Project, cluster: Cluster) -> Iterator[None]:
    """One more node, with node3's keys and another file system below ~/.muster, in its place."""
    name = cluster.env["COMPOSE_PROJECT_NAME"]
    container = subprocess.run(
        [
            *("docker", "run", "--detach", "--rm", "--cap-drop", "ALL", "--network", f"{name}_cluster"),
            *("--tmpfs", f"/home/muster/.muster:{options},mode=0700,uid=1000,gid=1000"),
            *("--volume", f"{name}_node3:/etc/muster/ssh:ro", "--publish", "127.0.0.1::2222", "muster:cpu"),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    try:
        words = ["docker", "port", container, "2222/tcp"]
        port = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split(":")[-1].strip()
        with known_hosts(project, cluster, f":{cluster.env['MUSTER_PORT3']},", f":{port},"):
            hosts = f"node1 slots=2\nnode2 slots=2\nnode3 slots=2 port={port}\n"
            (project.path / "hosts.txt").write_text(hosts)
            wait_for_ssh(int(port))
            yield
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True)


def wait_for_ssh(port: int) -> None:
    def greets() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            return probe.recv(4) == b"SSH-"
        return False

    wait_until(greets, f"an sshd at port {port}")


@contextmanager
def listener(project: Project, *, accepts: bool) -> Iterator[None]:
    """A port in place of node3's that takes connections and says nothing, or that answers no packet."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64 if accepts else 0)
        # A full queue of connections: the kernel drops what comes next.
        waiting = [socket.socket() for _ in range(0 if accepts else 4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        hosts = f"node1 slots=2\nnode2 slots=2\nnode3 slots=2 port={server.getsockname()[1]}\n"
        (project.path / "hosts.txt").write_text(hosts)
        yield
        for one in waiting:
            one.close()


def mpirun_hangs(cluster: Cluster, script: str) -> AbstractContextManager[None]:
    version = 'case "$1" in --version) exec /usr/bin/mpirun.openmpi --version;; esac'
    return replaced(cluster, "node1", "/usr/bin/mpirun", f"#!/bin/sh\n{version}\n{script}\nsleep 600\n")


START_FAULTS: Mapping[str, StartFault] = {
    "refused": StartFault(
        title="a host refuses connections",
        within=5,
        hosts="node1 slots=2\nnode2 slots=2\nnode3 slots=2 port=1\n",
        says=r"^node3: .*connect to host 127.0.0.1 port 1: .*refused; does sshd run there\?",
    ),
    "dropped": StartFault(
        title="a host drops packets",
        within=15,
        there=lambda project, cluster: listener(project, accepts=False),
        says=r"^node3: no answer from 127.0.0.1 port \d+ within 10 s; is the host up",
    ),
    "silent": StartFault(
        title="a host accepts and never answers",
        within=15,
        there=lambda project, cluster: listener(project, accepts=True),
        says=r"^node3: 127.0.0.1 port \d+ accepts connections but does not speak SSH within 10 s",
    ),
    "key": StartFault(
        title="a host has another key",
        within=5,
        there=lambda project, cluster: known_hosts(
            project, cluster, key_of(cluster, "node3"), key_of(cluster, "node1")
        ),
        says=r"^node3: HOST KEY CHANGED: Offending .* key in .*known_hosts:\d+.*ssh-keygen -R",
    ),
    "disk": StartFault(
        title="a host's disk is full",
        within=5,
        there=partial(node3_on_tmpfs, "size=8k"),
        says=r"^node3: cannot .*: no space left on the disk of /home/muster/.muster\S*; make room there",
    ),
    "start-hangs": StartFault(
        title="mpirun hangs at its start, with --start-timeout 3",
        within=10,
        words=("--start-timeout", "3"),
        there=lambda project, cluster: mpirun_hangs(cluster, ""),
        says=r"^FAILED  ranks 0-1 \(node1: mpirun started\), ranks 2-3 \(node2: code delivered\), "
        r"ranks 4-5 \(node3: code delivered\) had not started after 3 s",
    ),
    "exit-hangs": StartFault(
        title="mpirun hangs at its exit (all ranks ended well)",
        within=20,
        status=0,
        there=lambda project, cluster: mpirun_hangs(cluster, '/usr/bin/mpirun.openmpi "$@"'),
        says=r"note: mpirun still ran 10 s after all ranks had ended",
    ),
}

# What every run of the tests shows, without its seconds; the other rows are for `make soak`.
IN_EVERY_TEST = {"refused", "key", "disk"}
