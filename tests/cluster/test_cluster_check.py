"""`muster check` on three nodes, each broken in some way: the right host, cause and remedy are named."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.cluster.start_faults import key_of, known_hosts, replaced
from tests.cluster.striking import clean_at
from tests.launching import MUSTER, Project
from tests.load import hold
from tests.waiting import PATIENCE, read_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

Break = Callable[["Cluster", Project], AbstractContextManager[object]]
PACKAGES = "/usr/lib/python3/dist-packages"


@dataclass(frozen=True)
class Checked:
    """What `muster check` said."""

    status: int
    output: str
    seconds: float

    @property
    def said(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.output)
        return loaded

    @property
    def ids(self) -> list[tuple[str, str]]:
        return [(finding["host"], finding["id"]) for finding in self.said["findings"]]


def check(project: Project, *words: str) -> Checked:
    began = time.monotonic()
    done = subprocess.run(
        [str(MUSTER), "check", *words],
        cwd=project.path,
        env=project.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in done.stdout
    return Checked(done.returncode, done.stdout, time.monotonic() - began)


def test_a_healthy_cluster_is_fit_and_the_table_says_what_it_is(project: Project) -> None:
    done = check(project)
    assert done.status == 0, done.output
    header, *rows, empty, summary = done.output.splitlines()
    assert header.split()[:4] == ["host", "slots", "cores", "GPUs"]
    for node, row in zip(("node1", "node2", "node3"), rows, strict=True):
        found = re.fullmatch(r"(\w+)  2 +\d+ +0 +5\.0\.7 +2\.6\.0\S* +3\.\d+\.\d+ +\S+ ms  .*1 GiB +fit", row)
        assert found and found.group(1) == node, row
    assert (empty, summary) == ("", "3 of 3 hosts are fit")


@pytest.mark.timed
def test_json_of_a_healthy_cluster_is_complete(cluster: Cluster, project: Project) -> None:
    done = check(project, "--json")
    assert (done.status, done.said["fit"], done.said["launcher"], done.ids) == (0, True, "mpirun", [])
    for host in done.said["hosts"]:
        assert set(host["reached"]) == {"node1", "node2", "node3"}
        assert all(reached["interfaces"] for reached in host["reached"].values())
        # Three containers of one machine have one clock.
        assert abs(host["clock"]["ahead_s"]) <= host["clock"]["uncertainty_s"]
        hold("uncertainty of a clock", host["clock"]["uncertainty_s"], 0.05)
        assert host["health"]["user"] == "muster"
    clean_at(cluster, cluster.nodes)


# ---- something is wrong -----------------------------------------------------------------------------------


def file_of(node: str, path: str, text: str | None) -> Break:
    return lambda cluster, project: replaced(cluster, node, path, text)


def shell(node: str, broken: str, mended: str, user: str = "muster") -> Break:
    """Break by one command, repair by another."""

    @contextmanager
    def run(cluster: Cluster, project: Project) -> Iterator[None]:
        try:
            done = cluster.exec(node, ["sh", "-euc", broken], user=user)
            assert done.returncode == 0, done.stderr
            yield
        finally:
            done = cluster.exec(node, ["sh", "-euc", mended], user=user)
            assert done.returncode == 0, done.stderr

    return run


@contextmanager
def stopped(cluster: Cluster, project: Project) -> Iterator[None]:
    cluster.stop("node2")
    try:
        yield
    finally:
        cluster.start("node2")


@contextmanager
def frozen(cluster: Cluster, project: Project) -> Iterator[None]:
    cluster.pause("node2")
    try:
        yield
    finally:
        cluster.start("node2")


def changed_key(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
    return known_hosts(project, cluster, key_of(cluster, "node3"), key_of(cluster, "node1"))


def unknown_key(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
    return known_hosts(project, cluster, key_of(cluster, "node3"), "")


@contextmanager
def refused_key(cluster: Cluster, project: Project) -> Iterator[None]:
    """Another key than the one that node2 knows; the first and the third host still get theirs."""
    own = project.path / ".muster"
    with known_hosts(project, cluster, "", ""):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "other")], check=True, timeout=200
        )
        text = (own / "ssh_config").read_text()
        before, node2, after = text.partition("Host node2\n")
        (own / "ssh_config").write_text(before + node2 + after.replace("id_ed25519", "other", 1))
        yield


def other_torch(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
    path = metadata_of(cluster, "torch")
    text = cluster.exec("node2", ["cat", path]).stdout
    return replaced(cluster, "node2", path, re.sub(r"(?m)^Version: .*", "Version: 2.5.1", text))


def without(node: str, distribution: str) -> Break:
    def broken(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
        return replaced(cluster, node, str(Path(metadata_of(cluster, distribution)).parent), None)

    return broken


def metadata_of(cluster: Cluster, distribution: str) -> str:
    """The path of its metadata, the same on each node."""
    listing = f"ls -d {PACKAGES}/{distribution}-*info/METADATA {PACKAGES}/{distribution}-*info/PKG-INFO"
    return cluster.exec("node1", ["sh", "-c", f"{listing} 2>/dev/null"]).stdout.splitlines()[0]


MPIRUN_4 = '#!/bin/sh\necho "mpirun (Open MPI) 4.1.6"\n'
MPICH = '#!/bin/sh\necho "HYDRA build details: Version: 4.3.0"\n'
BASHRC = "cp ~/.bashrc ~/.bashrc.kept; { echo 'ulimit -n 256'; cat ~/.bashrc.kept; } > ~/.bashrc"
# The device folder of a container is a file system of 64 MiB: the only small one that needs no mount.
FULL_FOLDER = "mkdir -m 777 /dev/small; dd if=/dev/zero of=/dev/filling bs=1M 2>/dev/null || true"
HOSTS_FILE = "cp /etc/hosts /tmp/hosts.kept; { echo '%s'; grep -v %s /tmp/hosts.kept; } > /etc/hosts"
HOSTS_KEPT = "cat /tmp/hosts.kept > /etc/hosts; rm /tmp/hosts.kept"
SLOW = f"{PACKAGES}/slow.pth"
SLOW_CLOCK = "import time; time.time = (lambda now: lambda: now() - 2.5)(time.time)"
OLD_JOB = "MUSTER_JOB=20261119-080000-beef MUSTER_AGENT=/tmp/muster-gone"

OLDER = f"env {OLD_JOB} sleep 120 >/dev/null 2>&1 </dev/null & echo $! > /tmp/older"


class Round(NamedTuple):
    """What is wrong at the same time, on the second and the third node."""

    hosts: str
    status: int
    breaks: tuple[Break, ...]
    findings: tuple[tuple[str, str, str, str], ...]
    """Host, id, words of the text, words of the remedy."""


ROUNDS = {
    "a host is down, another has another key": Round(
        "node1\nnode2\nnode3",
        3,
        (stopped, changed_key),
        (
            ("node2", "ssh.port-refused", "Connection refused", "does sshd run there?"),
            ("node3", "ssh.host-key-changed", "HOST KEY CHANGED", "ssh-keygen -R"),
        ),
    ),
    "a host is frozen, another unknown": Round(
        "node1\nnode2\nnode3",
        3,
        (frozen, unknown_key),
        (
            ("node2", "ssh.silent", "does not speak SSH within 10 s", "look at its console"),
            (
                *("node3", "ssh.host-key-unknown", "host key is known for"),
                "ssh -o BatchMode=no -o StrictHostKeyChecking=ask -F ",
            ),
        ),
    ),
    "logins are refused": Round(
        "node1\nnode2\nnode3 user=stranger",
        3,
        (refused_key,),
        (
            ("node2", "ssh.login-refused", "Permission denied (publickey)", "add the public key there"),
            (
                "node3",
                "ssh.login-refused",
                "stranger@127.0.0.1: Permission denied",
                "add the public key there",
            ),
        ),
    ),
    "programs are missing": Round(
        "node1\nnode2\nnode3",
        3,
        (file_of("node2", "/usr/bin/mpirun", None), file_of("node3", "/usr/bin/mpirun", MPICH)),
        (
            (
                "node2",
                "mpi.missing",
                "no mpirun beside /usr/bin/python3",
                "install Open MPI 4.1 or 5.0 there",
            ),
            ("node3", "mpi.foreign", "/usr/bin/mpirun is not Open MPI's", "first on PATH"),
        ),
    ),
    "packages are missing": Round(
        "node1\nnode2\nnode3 addr=192.0.2.1",
        3,
        (
            file_of("node2", "/usr/bin/mpirun", MPIRUN_4),
            without("node2", "torch"),
            without("node3", "mpi4py"),
        ),
        (
            (
                *("node2", "mpi.version-differs", "Open MPI 4.1.6, where 2 hosts have 5.0.7"),
                "one version on all hosts",
            ),
            ("node2", "torch.missing", "/usr/bin/python3 has no torch", "--python"),
            ("node3", "mpi4py.missing", "which others have", "install mpi4py there"),
            ("node3", "address.wrong", "addr=192.0.2.1 is not an address of this host", "give one of 1"),
        ),
    ),
    "hosts are badly set up": Round(
        "node1\nnode2 slots=9\nnode3",
        3,
        (
            other_torch,
            shell("node2", FULL_FOLDER, "rm -r /dev/small /dev/filling", user="root"),
            shell(
                "node2",
                "mkdir -p ~/.muster; mv ~/.muster ~/.muster.kept; ln -s /dev/small ~/.muster",
                "rm ~/.muster; mv ~/.muster.kept ~/.muster",
            ),
            shell("node3", "mkdir -p ~/.muster; chmod 500 ~/.muster", "chmod 700 ~/.muster"),
            shell("node3", BASHRC, "mv ~/.bashrc.kept ~/.bashrc"),
            shell("node3", f"echo '{SLOW_CLOCK}' > {SLOW}", f"rm {SLOW}", user="root"),
            shell("node3", OLDER, "kill $(cat /tmp/older)"),
        ),
        (
            ("node2", "torch.version-differs", "torch 2.5.1, where 2 hosts", "one version"),
            ("node2", "slots.above-cores", "slots=9 on ", "in the hosts file"),
            ("node2", "shm.small", "for 9 ranks", ""),
            ("node2", "disk.full", "0 B free for /home/muster/.muster", ""),
            ("node3", "disk.not-writable", "muster cannot write to /home/muster/.muster: Permission", "own"),
            ("node3", "nofile.low", "256 open files allowed", "ulimit -n"),
            ("node3", "clock.apart", "its clock is 2.", "set-ntp true"),
            (
                *("node3", "processes.left", "1 process of job 20261119-080000-beef, whose agent is gone: "),
                "there: kill ",
            ),
        ),
    ),
}


@pytest.mark.timed
@pytest.mark.parametrize("name", ROUNDS)
def test_a_fault_alone_is_named_with_its_remedy(cluster: Cluster, project: Project, name: str) -> None:
    there = ROUNDS[name]
    (project.path / "hosts.txt").write_text(there.hosts)
    with ExitStack() as stack:
        for breaking in there.breaks:
            stack.enter_context(breaking(cluster, project))
        done = check(project, "--json")
    assert sorted(done.ids) == sorted(finding[:2] for finding in there.findings), done.output
    assert done.status == there.status
    said = {(finding["host"], finding["id"]): finding for finding in done.said["findings"]}
    for host, kind, text, remedy in there.findings:
        assert text in said[host, kind]["text"]
        assert remedy in said[host, kind]["remedy"]
    # The other hosts are examined, whatever happens to one.
    assert "node1" in {host["name"] for host in done.said["hosts"] if host["facts"]}
    hold(f"check: {name}", done.seconds, 20.0)


def test_an_unreachable_pair_is_named_with_direction_and_port(cluster: Cluster, project: Project) -> None:
    (project.path / "hosts.txt").write_text("node1\nnode2\nnode3 addr=node3\n")
    with shell("node2", HOSTS_FILE % ("127.0.0.1 node3", "node3"), HOSTS_KEPT, user="root")(cluster, project):
        done = check(project, "--json")
    assert (done.status, done.ids) == (3, [("node2", "pair.unreachable")])
    (finding,) = done.said["findings"]
    assert finding["peer"] == "node3"
    assert re.fullmatch(r"cannot connect to node3 port \d+: node3: Connection refused", finding["text"])
    assert "20000-31999" in finding["remedy"]


def test_a_running_job_is_seen_and_left_alone(project: Project) -> None:
    with project.start("--script", "program.py", "--args=wait") as process:
        read_until(process, "waiting", 6)
        done = check(project, "--json")
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert done.status == 0, done.output
    assert done.ids == [(node, "processes.running") for node in ("node1", "node2", "node3")]


# ---- several things are wrong -----------------------------------------------------------------------------


def test_no_python_there_and_hosts_that_are_excluded_are_not_asked(project: Project) -> None:
    (project.path / "hosts.txt").write_text("node1\nnode2 port=1\nnode3\n")
    done = check(project, "--python", "/opt/python", "--exclude", "node2")
    assert done.status == 3
    assert "node[1,3]: no /opt/python there  [python.missing]" in done.output
    assert "do: install Python 3.9 or newer, or name another with --python" in done.output
    assert "node2" not in done.output
