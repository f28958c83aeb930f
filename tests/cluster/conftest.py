"""The practice cluster of compose.yaml as a fixture, with its own project, keys and ports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launching import Project, make_project
from tests.parallel import NUMBER
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NODES = ("node1", "node2", "node3")
KEEP = os.environ.get("MUSTER_KEEP_CLUSTER") == "1"  # while writing tests: start in 1 s instead of 6

COMPOSE_FILES = os.pathsep.join(str(ROOT / name) for name in ("compose.yaml", "tests/cluster/quiet.yaml"))

# Processes of a node without a job: sshd, the logins of `start`, and `docker exec` on its way in.
SSHD = {"tini", "sshd", "sshd-session", "sshd-auth"}
ENTERING = {"runc init", "true", "bash -c true"}


class Process(NamedTuple):
    """A process on a node."""

    pid: int
    args: str


@dataclass(frozen=True)
class Cluster:
    """Three nodes that `ssh -F {ssh_config}` reaches by name, and ways to make them fail."""

    muster_dir: Path
    hosts_file: Path
    env: Mapping[str, str]
    nodes: tuple[str, ...] = NODES
    _containers: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def ssh_config(self) -> Path:
        return self.muster_dir / "ssh_config"

    def compose(self, *args: str, timeout: float = 300) -> str:
        command = ("docker", "compose", *args)
        done = subprocess.run(
            command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: status {done.returncode}\n{done.stderr}"
        return done.stdout

    def container(self, node: str) -> str:
        """Return the id of a node's container, cached because Compose takes 0.2 s to answer."""
        if node not in self._containers:
            self._containers[node] = self.compose("ps", "--all", "--quiet", node).strip()
            assert self._containers[node], f"no container of {node}"
        return self._containers[node]

    def exec(
        self, node: str, argv: Sequence[str], user: str = "muster", stdin: str = "", timeout: float = 200
    ) -> subprocess.CompletedProcess[str]:
        """Run argv on a node without SSH, in the image's environment, not that of a login."""
        command = ("docker", "exec", "--interactive", "--user", user, self.container(node), *argv)
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )

    def ssh(self, node: str, command: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a node, from this machine, as a user would."""
        argv = ("ssh", "-F", str(self.ssh_config), node, command)
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )

    def processes(self, node: str) -> list[Process]:
        """Return the living processes of jobs on a node, without zombies."""
        listing = self.exec(node, ("ps", "-e", "-o", "pid=,ppid=,stat=,comm=,args="), user="root")
        assert listing.returncode == 0, listing.stderr
        return _of_jobs(listing.stdout)

    def glance(self, container: str) -> list[Process]:
        """Return the same for a container, ten times as fast; the PIDs are those of the engine's host."""
        words = ("docker", "top", container, "-e", "-o", "pid,ppid,stat,comm,args")
        listing = subprocess.run(words, capture_output=True, text=True, timeout=200, check=True)
        return _of_jobs(listing.stdout.partition("\n")[2])

    def others(self, node: str) -> list[str]:
        """Return the other addresses in the node's network: those of its gateway and of the other nodes."""
        networks = "{{range .NetworkSettings.Networks}}{{.Gateway}} {{.IPAddress}} {{end}}"
        words = ("docker", "inspect", "--format", networks, *(self.container(name) for name in self.nodes))
        addresses = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        own_addresses = addresses.pop(self.nodes.index(node)).split()
        return sorted(set(" ".join(addresses).split()) - set(own_addresses[1:]))

    def beside(self, node: str, command: str) -> str:
        """Run a shell command in the node's network namespace, with the right to change it.

        `$card` is its interface there, whose name changes when the node is disconnected and connected again.
        """
        container = self.container(node)
        words = ["docker", "run", "--rm", f"--network=container:{container}", "--cap-add=NET_ADMIN"]
        words += [
            "--user=root",
            "--entrypoint=sh",
            f"muster:{self.env.get('MUSTER_TARGET', 'cpu')}",
            "-c",
            f"card=$(ip route show default | cut -d ' ' -f 5); {command}",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{node}: {command}: {done.stderr}"
        return done.stdout

    def kill(self, node: str) -> None:
        """Power the node off without a shutdown."""
        self.compose("kill", node)

    def stop(self, node: str) -> None:
        """Shut the node down: sshd gets SIGTERM."""
        self.compose("stop", "--timeout", "2", node)

    def pause(self, node: str) -> None:
        """Freeze every process; the kernel still acknowledges packets."""
        self.compose("pause", node)

    def unpause(self, node: str) -> None:
        self.compose("unpause", node)

    def start(self, *nodes: str) -> None:
        """Start nodes (by default all) from any state, and wait until each lets us in; keys are kept."""
        paused = self.compose("ps", "--status", "paused", "--format", "{{.Service}}").split()
        for node in [node for node in nodes or self.nodes if node in paused]:
            self.unpause(node)
        self.compose("up", "--detach", *nodes, timeout=300)  # without --wait, which needs health checks
        self._containers.clear()  # Compose makes a new container where its description has changed
        for node in nodes or self.nodes:
            wait_until(partial(self.lets_us_in, node), f"a login at {node}", pause=0.2)

    def lets_us_in(self, node: str) -> bool:
        return self.ssh(node, "true").returncode == 0


def _of_jobs(listing: str) -> list[Process]:
    processes = []
    for line in listing.splitlines():
        pid, parent, state, name, args = line.split(maxsplit=4)
        this_listing = name == "ps" and parent == "0"  # `docker exec` enters from outside: no parent here
        if not (state.startswith("Z") or name in SSHD or args in ENTERING or this_listing):
            processes.append(Process(int(pid), args))
    return processes


def _missing_engine() -> str | None:
    for command in (("docker", "info"), ("docker", "compose", "version")):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except FileNotFoundError as error:
            return str(error)
        if done.returncode:
            return f"`{' '.join(command)}`: {done.stderr.strip()}"
    return None


@pytest.fixture(scope="session")
def node_image() -> None:
    """Build the image of the nodes; it takes a second when nothing has changed.

    Compose writes the project's name into the image. `muster cluster up` gives it the same one: under another
    name the image would differ, and the user's next `up` would replace the user's nodes.
    """
    if missing := _missing_engine():
        pytest.skip(f"no container engine with compose answers: {missing}")
    build = ("docker", "compose", "--project-name", "muster", "build", "--quiet")
    subprocess.run(build, cwd=ROOT, check=True, timeout=1500, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def cluster(
    node_image: None, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    # Nodes are kept only while they use the same folder of keys.
    folder = pytestconfig.cache.mkdir(f"muster{NUMBER or ''}") if KEEP else tmp_path_factory.mktemp("muster")
    muster_dir = folder / ".muster"
    muster_dir.mkdir(exist_ok=True)
    hosts_file = folder / "hosts.txt"
    hosts_file.write_text("".join(f"{node} slots=2\n" for node in NODES))
    ports = {f"MUSTER_PORT{number}": str(2210 + 10 * NUMBER + number) for number in (1, 2, 3)}
    name = f"muster-test{NUMBER or ''}"
    env = os.environ | ports | {"COMPOSE_PROJECT_NAME": name, "MUSTER_DIR": str(muster_dir)}
    env["COMPOSE_FILE"] = COMPOSE_FILES
    cluster = Cluster(muster_dir, hosts_file, env)
    try:
        cluster.start()
        yield cluster
    finally:
        if not KEEP:
            cluster.compose("down", "--volumes", "--timeout", "1")


@pytest.fixture
def project(tmp_path: Path, cluster: Cluster) -> Project:
    """A project beside the cluster's keys."""
    made = make_project(tmp_path / "project")
    (made.path / "hosts.txt").write_text(cluster.hosts_file.read_text())
    (made.path / ".gitignore").write_text("runs/\n.muster\n")
    (made.path / ".muster").symlink_to(cluster.muster_dir)
    return made


@pytest.hookimpl(trylast=True)  # after deselection, so that only tests that will run are left
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.cluster)
    for item in here[:1]:  # it may have to build the image, which downloads PyTorch
        item.add_marker(pytest.mark.timeout(1800))
