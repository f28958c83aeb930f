"""`muster check` on three nodes, each broken in some way: the right host, cause and remedy are named."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_json_of_a_healthy_cluster_has_facts_clocks_and_every_pair(project: Project, launcher: str) -> None:
    done = check(project, "--json", "--launcher", launcher)
    assert (done.status, done.said["fit"], done.said["launcher"], done.ids) == (0, True, launcher, [])
    for host in done.said["hosts"]:
        assert set(host["reached"]) == {"node1", "node2", "node3"}
        assert all(reached["interfaces"] for reached in host["reached"].values())
        # Three containers of one machine have one clock.
        assert abs(host["clock"]["ahead_s"]) <= host["clock"]["uncertainty_s"]
        hold("uncertainty of a clock", host["clock"]["uncertainty_s"], 0.05)
        assert host["health"]["user"] == "muster"


# ---- one thing is wrong -----------------------------------------------------------------------------------


def hosts(text: str) -> Break:
    def broken(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
        (project.path / "hosts.txt").write_text(text)
        return nullcontext()

    return broken


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
    return known_hosts(project, cluster, key_of(cluster, "node2"), key_of(cluster, "node1"))


def unknown_key(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
    return known_hosts(project, cluster, key_of(cluster, "node2"), "")


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


def no_torch(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
    return replaced(cluster, "node2", str(Path(metadata_of(cluster, "torch")).parent), None)


def no_mpi4py(cluster: Cluster, project: Project) -> AbstractContextManager[object]:
    return replaced(cluster, "node2", str(Path(metadata_of(cluster, "mpi4py")).parent), None)


def metadata_of(cluster: Cluster, distribution: str) -> str:
    listing = f"ls -d {PACKAGES}/{distribution}-*info/METADATA {PACKAGES}/{distribution}-*info/PKG-INFO"
    return cluster.exec("node2", ["sh", "-c", f"{listing} 2>/dev/null"]).stdout.splitlines()[0]


THREE = "node1 slots=2\nnode2 slots=2\nnode3 slots=2\n"
MPIRUN_4 = '#!/bin/sh\necho "mpirun (Open MPI) 4.1.6"\n'
MPICH = '#!/bin/sh\necho "HYDRA build details: Version: 4.3.0"\n'
BASHRC = "cp ~/.bashrc ~/.bashrc.kept; { echo 'ulimit -n 256'; cat ~/.bashrc.kept; } > ~/.bashrc"
# The device folder of a container is a file system of 64 MiB: the only small one that needs no mount.
FULL_FOLDER = "mkdir -m 777 /dev/small; dd if=/dev/zero of=/dev/filling bs=1M 2>/dev/null || true"
HOSTS_FILE = "cp /etc/hosts /tmp/hosts.kept; { echo '%s'; grep -v %s /tmp/hosts.kept; } > /etc/hosts"
HOSTS_KEPT = "cat /tmp/hosts.kept > /etc/hosts; rm /tmp/hosts.kept"
SLOW_CLOCK = "import time; time.time = (lambda now: lambda: now() - 2.5)(time.time)"
OLD_JOB = "MUSTER_JOB=20261119-080000-beef MUSTER_AGENT=/tmp/muster-gone"

BREAKS: dict[str, tuple[Break, int, str, str, str]] = {
    # What is wrong with node2: (how, exit status, id, words of the text, words of the remedy)
    "stopped": (stopped, 3, "ssh.port-refused", "Connection refused", "does sshd run there?"),
    "frozen": (frozen, 3, "ssh.silent", "does not speak SSH within 10 s", "look at its console"),
    "host key changed": (changed_key, 3, "ssh.host-key-changed", "HOST KEY CHANGED", "ssh-keygen -R"),
    "host key unknown": (
        unknown_key,
        3,
        "ssh.host-key-unknown",
        "SHA256:",
        "ssh -o BatchMode=no -o StrictHostKeyChecking=ask -F ",
    ),
    "key refused": (refused_key, 3, "ssh.login-refused", "/other (Auth", "add the public key there"),
    "wrong user": (
        hosts(THREE.replace("node2 slots=2", "node2 slots=2 user=stranger")),
        *(3, "ssh.login-refused", "stranger may not log in", "add the public key there"),
    ),
    "wrong port": (
        hosts(THREE.replace("node2 slots=2", "node2 slots=2 port=1")),
        *(3, "ssh.port-refused", "127.0.0.1 port 1: Connection refused", "port= sets another port"),
    ),
    "no mpirun": (
        file_of("node2", "/usr/bin/mpirun", None),
        *(3, "mpi.missing", "no mpirun beside /usr/bin/python3", "install Open MPI 4.1 or 5.0 there"),
    ),
    "another MPI": (
        file_of("node2", "/usr/bin/mpirun", MPICH),
        *(3, "mpi.foreign", "/usr/bin/mpirun is not Open MPI's", "first on PATH"),
    ),
    "another Open MPI": (
        file_of("node2", "/usr/bin/mpirun", MPIRUN_4),
        *(3, "mpi.version-differs", "Open MPI 4.1.6, where 2 hosts have 5.0.7", "one version on all hosts"),
    ),
    "no mpi4py": (no_mpi4py, 0, "mpi4py.missing", "which others have", "install mpi4py there"),
    "no torch": (no_torch, 3, "torch.missing", "/usr/bin/python3 has no torch", "--python"),
    "another torch": (other_torch, 3, "torch.version-differs", "torch 2.5.1, where 2 hosts", "one version"),
    "too many slots": (
        hosts("node1\nnode2 slots=7\nnode3"),
        *(0, "slots.above-cores", "slots=7 on ", "in the hosts file"),
    ),
    "not writable": (
        shell("node2", "mkdir -p ~/.muster; chmod 500 ~/.muster", "chmod 700 ~/.muster"),
        *(3, "disk.not-writable", "muster cannot write to /home/muster/.muster: Permission denied", "own"),
    ),
    "few open files": (
        shell("node2", BASHRC, "mv ~/.bashrc.kept ~/.bashrc"),
        *(0, "nofile.low", "256 open files allowed", "ulimit -n"),
    ),
    "own name is loopback": (
        shell("node2", HOSTS_FILE % ("127.0.1.1 node2", "node2"), HOSTS_KEPT, user="root"),
        *(0, "name.loopback", "its own name node2 is 127.0.1.1 there", "in /etc/hosts there: 1"),
    ),
    "clock behind": (
        shell("node2", f"echo '{SLOW_CLOCK}' > {PACKAGES}/slow.pth", f"rm {PACKAGES}/slow.pth", user="root"),
        *(0, "clock.apart", "its clock is 2.", "set-ntp true"),
    ),
    "addr= of another network": (
        hosts("node1\nnode2 addr=192.0.2.1\nnode3"),
        *(3, "address.wrong", "addr=192.0.2.1 is not an address of this host", "give one of 1"),
    ),
}


@pytest.mark.timed
@pytest.mark.parametrize("name", BREAKS)
def test_what_is_wrong_is_named_with_its_host_and_its_remedy_and_nothing_else(
    cluster: Cluster, project: Project, name: str
) -> None:
    breaking, status, kind, text, remedy = BREAKS[name]
    with breaking(cluster, project):
        done = check(project, "--json")
    assert done.ids == [("node2", kind)], done.output
    assert done.status == status
    (finding,) = done.said["findings"]
    assert text in finding["text"]
    assert remedy in finding["remedy"]
    # The other hosts are examined, whatever happens to one.
    assert {"node1", "node3"} <= {host["name"] for host in done.said["hosts"] if host["facts"]}
    hold(f"check: {name}", done.seconds, 20.0)


def test_a_full_disk(cluster: Cluster, project: Project) -> None:
    with (
        shell("node2", FULL_FOLDER, "rm -r /dev/small /dev/filling", user="root")(cluster, project),
        shell(
            "node2",
            "mkdir -p ~/.muster; mv ~/.muster ~/.muster.kept; ln -s /dev/small ~/.muster",
            "rm ~/.muster; mv ~/.muster.kept ~/.muster",
        )(cluster, project),
    ):
        done = check(project, "--json")
    assert (done.status, done.ids) == (3, [("node2", "disk.full")]), done.output
    assert done.said["findings"][0]["text"] == "0 B free for /home/muster/.muster"


def test_too_little_shared_memory_for_so_many_ranks(project: Project) -> None:
    (project.path / "hosts.txt").write_text("node1\nnode2 slots=9\n")
    done = check(project, "--json")
    assert (done.status, done.ids) == (0, [("node2", "slots.above-cores"), ("node2", "shm.small")])
    assert "for 9 ranks" in done.said["findings"][1]["text"]


def test_a_pair_that_cannot_reach_each_other_is_named_with_direction_and_port(
    cluster: Cluster, project: Project
) -> None:
    (project.path / "hosts.txt").write_text("node1\nnode2\nnode3 addr=node3\n")
    with shell("node2", HOSTS_FILE % ("127.0.0.1 node3", "node3"), HOSTS_KEPT, user="root")(cluster, project):
        done = check(project, "--json")
    assert (done.status, done.ids) == (3, [("node2", "pair.unreachable")])
    (finding,) = done.said["findings"]
    assert finding["peer"] == "node3"
    assert re.fullmatch(r"cannot connect to node3 port \d+: node3: Connection refused", finding["text"])
    assert "20000-31999" in finding["remedy"]


def test_processes_of_an_older_job_are_named_by_their_number(cluster: Cluster, project: Project) -> None:
    started = cluster.exec(
        "node3", ["sh", "-c", f"env {OLD_JOB} sleep 120 >/dev/null 2>&1 </dev/null & echo $!"]
    )
    pid = started.stdout.strip()
    try:
        done = check(project, "--json")
    finally:
        cluster.exec("node3", ["kill", pid])
    assert (done.status, done.ids) == (0, [("node3", "processes.left")]), done.output
    (finding,) = done.said["findings"]
    assert finding["text"] == f"1 process of job 20261119-080000-beef, whose agent is gone: {pid}"
    assert finding["remedy"] == f"there: kill {pid}"


def test_a_running_job_is_seen_and_left_alone(project: Project) -> None:
    with project.start("--launcher", "torchrun", "--script", "program.py", "--args=wait") as process:
        read_until(process, "waiting", 6)
        done = check(project, "--json")
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert done.status == 0, done.output
    assert done.ids == [(node, "processes.running") for node in ("node1", "node2", "node3")]


# ---- several things are wrong -----------------------------------------------------------------------------


def test_every_failure_of_every_host_is_named_at_once(cluster: Cluster, project: Project) -> None:
    text = "node1 slots=2\nnode2 slots=2 port=1\nnowhere.invalid slots=2\nnode3 slots=99\n"
    (project.path / "hosts.txt").write_text(text)
    with replaced(cluster, "node3", "/usr/bin/mpirun", None):
        done = check(project)
    assert done.status == 3
    assert re.search(r"ERROR +node2: cannot connect to 127.0.0.1 port 1: .*\[ssh.port-refused\]", done.output)
    assert "nowhere.invalid: the name nowhere.invalid is not known  [ssh.name-unknown]" in done.output
    assert "node3: no mpirun beside /usr/bin/python3 nor on PATH  [mpi.missing]" in done.output
    assert re.search(r"WARNING +node3: slots=99 on \d+ cores?: .*\[slots.above-cores\]", done.output)
    assert re.search(r"^node1 .* fit$", done.output, re.MULTILINE)
    assert done.output.endswith("1 of 4 hosts are fit, 2 warnings\n")


def test_no_python_there(project: Project) -> None:
    done = check(project, "--python", "/opt/python")
    assert done.status == 3
    assert "node[1-3]: no /opt/python there  [python.missing]" in done.output
    assert "do: install Python 3.9 or newer, or name another with --python" in done.output


def test_torchrun_needs_no_mpirun(cluster: Cluster, project: Project) -> None:
    with replaced(cluster, "node2", "/usr/bin/mpirun", None):
        done = check(project, "--json", "--launcher", "torchrun")
    assert (done.status, done.ids) == (0, [])


def test_hosts_that_are_excluded_are_not_asked(project: Project) -> None:
    (project.path / "hosts.txt").write_text("node1\nnode2 port=1\nnode3\n")
    done = check(project, "--exclude", "node2", "--json")
    assert (done.status, [host["name"] for host in done.said["hosts"]]) == (0, ["node1", "node3"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--hosts", "missing.txt"], "missing.txt: no such hosts file"),
        (["--launcher", "slurm"], "--launcher slurm: must be one of mpirun, torchrun"),
        (["--include", "node9"], "--include: node9 not in the hosts file"),
    ],
)
def test_what_is_written_wrong_is_exit_status_2(project: Project, words: list[str], complaint: str) -> None:
    done = check(project, *words)
    assert (done.status, complaint in done.output) == (2, True), done.output


def test_nothing_is_left_by_a_check(cluster: Cluster, project: Project) -> None:
    check(project)
    clean_at(cluster, cluster.nodes)
