"""`muster image.push` to three engines: one has the image, one an older one, one nothing and is lost.

The engines are this machine's own, and Debian 13's docker with containerd's image store.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from muster.deploy.core.connect.cluster import Cluster as Hosts
from muster.deploy.core.connect.opener import access_with
from muster.deploy.core.content import tree_transfer
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.image.engine import LocalEngine
from muster.deploy.features.image.image_push import ImagePushResult, ImageTransfer, prepare, survey
from tests.cluster.conftest import NODES, ROOT, Cluster
from tests.launching import MUSTER
from tests.waiting import wait_until

pytestmark = pytest.mark.soak  # its plan is in tests/unit/test_push_plan.py

OLDER, IMAGE = "muster-push:older", "muster-push:new"
LOW, HIGH = 48 << 20, 8 << 20  # bytes of the two layers; random, so that compressing saves nothing
CONTAINERD = "containerd's store"
BASE, PACKAGES = "debian:trixie-slim", "docker.io containerd runc"
LOOK = ("image", "inspect", "--format", "{{.Created}} {{range .RootFS.Layers}}{{.}} {{end}}", IMAGE)


@dataclass(frozen=True)
class Engines:
    """Three dockerd without networks, each behind the sshd of a node, and a folder for compressed layers."""

    cluster: Cluster
    folder: Path
    cache: Path
    store: str
    """The kind of the engines' image store."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Variables that name the engine from which the image is taken; without them it is this machine's."""

    def docker(self, node: str, *words: str, stdin: bytes | None = None) -> str:
        command = ("docker", "--host", f"unix://{self.folder}/{node}/docker.sock", *words)
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
        return done.stdout.decode().strip()

    @property
    def lacks(self) -> int:
        """How many layers come to a host that has the older image: containerd's store takes all or none."""
        return 2 if self.store == CONTAINERD else 1

    def has(self, image: Sequence[str]) -> list[bool]:
        """Which of the nodes have an image with this time and these layers. Each store has its own ids."""
        return [self.docker(node, *LOOK).split() == list(image) for node in NODES]

    def staged(self, node: str) -> int:
        """Bytes of layers that wait on a node."""
        listed = self.cluster.exec(node, ("sh", "-c", "cat /home/muster/.muster/images/* | wc -c"))
        return int(listed.stdout)

    def push(self) -> subprocess.CompletedProcess[str]:
        config = ("--ssh-config", str(self.cluster.ssh_config))
        return subprocess.run(
            (str(MUSTER), "image.push", "--hosts", str(self.cluster.hosts_file), "--image", IMAGE, *config),
            cwd=ROOT,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), **self.source},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def docker(*words: str, stdin: bytes | None = None) -> bytes:
    command = ("docker", *words)
    return subprocess.run(command, input=stdin, capture_output=True, check=True, timeout=120).stdout


def make_images(folder: Path) -> list[str]:
    """An image of one layer, and one with another on top; the time and the layers of the second."""
    docker("image", "rm", "--force", OLDER, IMAGE)
    (folder / "low").write_bytes(os.urandom(LOW))
    (folder / "high").write_bytes(os.urandom(HIGH))
    (folder / "Dockerfile").write_text("FROM scratch AS older\nCOPY low /\nFROM older\nCOPY high /\n")
    docker("build", "--quiet", "--target", "older", "--tag", OLDER, str(folder))
    docker("build", "--quiet", "--tag", IMAGE, str(folder))
    return docker(*LOOK).decode().split()


@pytest.fixture(scope="module")
def newer_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 13's engine, unpacked; it runs on Debian 12 as it is."""
    folder = tmp_path_factory.mktemp("engine")
    get = f"cd /out && apt-get update -qq && apt-get download -qq {PACKAGES}"
    docker("run", "--rm", "--volume", f"{folder}:/out", BASE, "sh", "-c", get)
    for package in folder.glob("*.deb"):
        subprocess.run(("dpkg", "-x", package, folder / "root"), check=True)
    return folder / "root" / "usr"


def start_engine(folder: Path, newer: Path | None) -> subprocess.Popen[bytes]:
    """An engine in a network namespace of its own: one without a bridge removes docker0 where it is."""
    folder.mkdir()
    (folder / "daemon.json").write_text(
        json.dumps({"features": {"containerd-snapshotter": True}} if newer else {})
    )
    path = [f"{newer}/bin", f"{newer}/sbin"] if newer else []
    own = ("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid")
    nets = ("--host", f"unix://{folder}/docker.sock", "--bridge", "none", "--iptables=false")
    with (folder / "log").open("wb") as log:
        command = ("unshare", "--net", "--", "dockerd", "--config-file", f"{folder}/daemon.json", *own, *nets)
        env = {**os.environ, "PATH": os.pathsep.join([*path, os.environ["PATH"]])}
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def wait_for(folder: Path) -> None:
    command = ("docker", "--host", f"unix://{folder}/docker.sock", "info")

    def answers() -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    wait_until(answers, lambda: f"an engine: {(folder / 'log').read_text()[-2000:]}", pause=0.2)
    (folder / "docker.sock").chmod(0o666)  # for the nodes' user


@pytest.fixture(scope="module", params=["the engine's own store", CONTAINERD])
def engines(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engines]:
    if os.geteuid() or not shutil.which("dockerd"):
        pytest.skip("engines of the test's own need root, and dockerd on PATH")
    bridge = Path("/sys/class/net/docker0")
    had_bridge = bridge.exists()
    folder = Path(tempfile.mkdtemp(prefix="me-"))  # short: a Unix socket's path has at most 107 characters
    newer = request.getfixturevalue("newer_engine") if request.param == CONTAINERD else None
    running = {node: start_engine(folder / node, newer) for node in NODES}
    muster = tmp_path_factory.mktemp("push") / ".muster"
    muster.mkdir()
    hosts_file = muster.parent / "hosts.txt"
    hosts_file.write_text("".join(f"{node} slots=1\n" for node in NODES))
    ports = {f"MUSTER_PORT{number}": str(2660 + number) for number in range(1, 6)}
    files = f"{ROOT}/compose.yaml:{ROOT}/tests/cluster/engines.yaml"
    own = {"COMPOSE_PROJECT_NAME": "muster-push", "MUSTER_DIR": str(muster), "ENGINES": str(folder)}
    own["DOCKER"] = shutil.which("docker") or ""
    env = {**cluster.env, **ports, **own, "COMPOSE_FILE": files}
    second = replace(cluster, muster_dir=muster, hosts_file=hosts_file, env=env)
    try:
        for node in NODES:
            wait_for(folder / node)
        made = Engines(second, folder, muster.parent / "cache", request.param)
        driver = made.docker("node1", "info", "--format", "{{.DriverStatus}}")
        assert ("containerd" in driver) == (request.param == CONTAINERD), driver
        second.compose("up", "--detach", "--wait", "--no-build")
        yield made
    finally:
        second.compose("down", "--volumes", "--timeout", "1")
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(30)
        docker("image", "rm", "--force", OLDER, IMAGE)
        shutil.rmtree(folder, ignore_errors=True)
    assert bridge.exists() == had_bridge, "the test's engines changed the network of this machine"


def push_and_lose(engines: Engines, lost: str, monkeypatch: pytest.MonkeyPatch) -> ImagePushResult:
    """Push the image, and switch a node off when some of the first layer has left here, and is there."""

    class Layer(io.FileIO):
        is_cut = False

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > LOW // 8 and not Layer.is_cut:
                Layer.is_cut = True
                wait_until(lambda: engines.staged(lost), f"some of a layer on {lost}")
                engines.cluster.kill(lost)
            return super().read(size)

    monkeypatch.setattr(tree_transfer, "open_regular", Layer)
    engine = LocalEngine()
    image = engine.image(IMAGE)
    with Hosts(
        hostfile.load(engines.cluster.hosts_file), access_with(engines.cluster.ssh_config, "").open
    ) as hosts:
        lacking = survey(hosts, image, {})
        assert [lacking[node] and len(lacking[node] or ()) for node in NODES] == [None, engines.lacks, 2]
        saved = prepare(engine, image, lacking, engines.cache)
        return ImageTransfer(hosts, image, saved, lambda done, total: None).push(lacking, {})


def test_a_push_comes_and_resumes(engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_images(tmp_path)
    engines.docker("node1", "load", stdin=docker("save", IMAGE))
    engines.docker("node2", "load", stdin=docker("save", OLDER))
    assert engines.has(image) == [True, False, False]

    pushed = push_and_lose(engines, "node3", monkeypatch)
    outcomes = pushed.hosts
    assert outcomes["node1"].had_it
    assert (outcomes["node2"].layers, outcomes["node2"].error) == (engines.lacks, "")
    assert engines.has(image) == [True, True, False]
    assert "the SSH connection to it is gone; the data that arrived there is kept" in outcomes["node3"].error

    engines.cluster.start("node3")
    arrived = engines.staged("node3")
    assert 0 < arrived < LOW + HIGH
    done = engines.push()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert engines.has(image) == [True, True, True]
    assert re.search(r"node\[1-2\] +has it already\nnode3 +loaded; 2 layers transferred", done.stdout)
    sent = re.search(r"([\d.]+) MB left this machine", done.stdout)
    assert sent
    assert float(sent.group(1)) * 1e6 == pytest.approx(LOW + HIGH - arrived, abs=1e6)
    assert engines.staged("node3") == 0


def test_each_layer_leaves_here_once(engines: Engines, tmp_path: Path) -> None:
    image = make_images(tmp_path)
    done = engines.push()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert engines.has(image) == [True, True, True]
    sent = re.search(r"on 3 of 3 hosts after \d+ s; ([\d.]+) MB left this machine", done.stdout)
    assert sent
    assert float(sent.group(1)) * 1e6 == pytest.approx(LOW + HIGH, abs=1e6)


def test_an_image_comes_from_an_engine_of_either_kind(engines: Engines, tmp_path: Path) -> None:
    image = make_images(tmp_path)
    engines.docker("node1", "load", stdin=docker("save", IMAGE))
    done = replace(engines, source={"DOCKER_HOST": f"unix://{engines.folder}/node1/docker.sock"}).push()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert re.search(r"node1 +has it already\nnode\[2-3\] +loaded; 2 layers", done.stdout), done.stdout
    assert engines.has(image) == [True, True, True]


def test_a_host_without_an_engine_is_named_first(cluster: Cluster, engines: Engines) -> None:
    without = replace(engines, cluster=cluster)
    done = without.push()
    assert (done.returncode, done.stdout) == (3, "")
    assert "node[1-3]: there is no command docker, which loads images" in done.stderr
