"""A container engine that was on the host before setup: a node runs in it, and nothing of it is lost.

The package `docker-ce` is made for the test: Debian's engine under that name, with the real one's conflicts.
The node's image is the real one without PyTorch, which a job of MPI has no use for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import registry
from tests.ansible.bare_hosts import HAS_TORCH, PROJECT, ROOT, Hosts, run
from tests.ansible.test_setup import RANKS, launch
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not HAS_TORCH, reason="the package is made of Debian 13's"),
]

MAKE_DOCKER_CE = r"""
set -eu
mkdir /tmp/ce && cd /tmp/ce
for part in docker.io docker-cli; do dpkg-deb -R /var/cache/apt/archives/${part}_*.deb $part; done
cp -a docker-cli/usr/. docker.io/usr/
depends=$(sed -n 's/^Depends: //p' docker.io/DEBIAN/control | sed 's/docker-cli[^,]*, //')
cat >docker.io/DEBIAN/control <<END
Package: docker-ce
Version: 5:29.0.0-1~debian.13~trixie
Architecture: amd64
Maintainer: Docker <support@docker.com>
Depends: $depends
Conflicts: docker (<< 1.5~), docker-engine, docker.io
Replaces: docker-engine
Description: Docker, as if from its own repository
END
rm -f docker.io/DEBIAN/postrm docker.io/DEBIAN/md5sums
dpkg-deb -Znone -b docker.io docker-ce.deb
apt-get install --yes --no-install-recommends ./docker-ce.deb
cd / && rm -r /tmp/ce
systemctl enable --now docker
docker volume create precious
echo weights >/var/lib/docker/volumes/precious/_data/checkpoint
"""
PRECIOUS = "/var/lib/docker/volumes/precious/_data/checkpoint"
IMAGE = "muster-bare-login"
BUILD = (
    *("docker", "buildx", "build", "--load", "--quiet"),
    *("--target", "login", "--build-arg", "FLAVOR=mpi", "--tag", IMAGE),
)


@pytest.fixture(scope="module")
def owner(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A host whose owner has an engine of another origin, and data in it."""
    hosts = Hosts(tmp_path_factory.mktemp("owner"), ["node6"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    built = run(*BUILD, "--file", str(ROOT / "docker/Dockerfile"), str(ROOT))
    assert built.returncode == 0, built.stderr
    hosts.variables |= {"muster_stack": "node", "node_image": IMAGE}
    hosts.compose("rm", "--force", "--stop", "--volumes", "node6")
    hosts.start("node6")
    done = run("docker", "exec", hosts.container("node6"), "sh", "-c", MAKE_DOCKER_CE, timeout=400)
    assert is_whole(hosts), done.stdout + done.stderr
    yield hosts
    hosts.compose("rm", "--force", "--stop", "--volumes", "node6")


def is_whole(hosts: Hosts) -> bool:
    """Whether engine and data are there, under the name of docker-ce alone."""
    packages = hosts.on("node6", "dpkg", "--get-selections", "docker*").split()[::2]
    volumes = hosts.on("node6", "docker", "volume", "ls", "--quiet").split()
    return (packages, volumes, hosts.on("node6", "cat", PRECIOUS)) == (
        ["docker-ce"],
        ["precious"],
        "weights\n",
    )


def traces(hosts: Hosts) -> set[str]:
    """What is on the host, but for what the owner's containerd makes when it first runs a container."""
    return {line for line in hosts.traces("node6") if not line.startswith("/var/lib/containerd/")}


def process(hosts: Hosts) -> str:
    return hosts.on("node6", "systemctl", "show", "--property=MainPID", "docker")


@pytest.fixture(scope="module")
def before(owner: Hosts) -> tuple[str, set[str]]:
    """The engine's process and the host's traces before setup."""
    return process(owner), traces(owner)


def test_a_node_is_set_up_in_an_engine_that_runs_already(owner: Hosts, before: tuple[str, set[str]]) -> None:
    done = owner.play("setup")
    assert done.status == 0, done.text
    assert is_whole(owner)
    done = owner.play("verify")
    assert done.status == 0, done.text
    found = {check["id"] for check in owner.checks()}
    assert found >= {"container_engine.answers", "node.container", "node.unit", "ssh_trust.driver"}


def test_a_job_runs_in_the_node_and_its_output_outlives_the_container(owner: Hosts, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = launch(owner, tmp_path, "--script", "ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 1 on node6") >= 2
    assert owner.driver("node6", "mkdir out && echo weights >out/checkpoint").returncode == 0
    owner.on("node6", "systemctl", "restart", "muster-node")
    saved = wait_until(lambda: owner.driver("node6", "cat out/checkpoint").stdout, "a login", patience=200.0)
    assert saved == "weights\n"


def test_teardown_leaves_an_engine_that_was_there_before(owner: Hosts, before: tuple[str, set[str]]) -> None:
    done = owner.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    assert is_whole(owner)
    assert process(owner) == before[0]  # nobody has even restarted it
    after = traces(owner)
    assert (before[1] - after, after - before[1]) == (set(), set())


def test_an_engine_that_does_not_answer_stops_setup_before_anything_is_changed(owner: Hosts) -> None:
    before = owner.traces("node6")
    owner.on("node6", "systemctl", "stop", "docker.socket", "docker.service")
    done = owner.play("setup")
    owner.on("node6", "systemctl", "start", "docker.socket", "docker.service")
    wait_until(lambda: is_whole(owner), "the engine as it was", patience=200.0)
    assert done.status != 0
    assert "is not setup's, so it is used as it is, but it does not answer" in done.text
    assert owner.traces("node6") == before


def test_a_value_that_a_role_does_not_take_stops_setup_before_anything_is_changed(owner: Hosts) -> None:
    done = owner.play("setup", time_sync_mode="chrony")
    assert done.status != 0
    assert "value of time_sync_mode must be one of: auto, public, head, isolated, got: chrony" in done.text
    assert done.changed == 0, done.text


def test_the_engine_pulls_from_a_private_registry_or_all_is_undone(owner: Hosts, tmp_path: Path) -> None:
    """Its certificate is the engine's to trust, its login is root's."""
    image = f"{registry.NAME}/team/node:1"
    trust, login = f"/etc/docker/certs.d/{registry.NAME}/ca.crt", "/root/.docker/config.json"
    before = owner.traces("node6")
    with registry.running(tmp_path, network=f"{PROJECT}_hosts") as images:
        images.push(IMAGE, "team/node:1")
        texts = []
        for lack, fix, words in (
            ("x509", trust, images.certificate),
            ("no basic auth credentials", login, images.settings(registry.NAME)),
        ):
            done = owner.play("setup", node_image=image)
            texts.append(done.text)
            assert done.status != 0
            assert f"node6: its engine cannot pull {image}" in done.text
            assert lack in done.text
            assert owner.traces("node6") == before
            write = f"mkdir -p {Path(fix).parent} && cat >{fix}"
            wrote = run("docker", "exec", "-i", owner.container("node6"), "sh", "-c", write, stdin=words)
            assert wrote.returncode == 0
            before = owner.traces("node6")
        done = owner.play("setup", node_image=image)
        assert done.status == 0, done.text
        done_again = owner.play("setup", node_image=image)
        assert (done_again.status, done_again.changed) == (0, 0), done_again.text
        assert image.rpartition(":")[0] in owner.on("node6", "docker", "image", "ls")
        assert all(images.password not in text for text in (*texts, done.text, done_again.text))
    done = owner.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    assert image.rpartition(":")[0] not in owner.on("node6", "docker", "image", "ls")
    owner.on("node6", "rm", "-r", str(Path(trust).parents[1]), login)
    assert is_whole(owner)


def test_what_cannot_be_installed_stops_setup_before_anything_is_changed(owner: Hosts) -> None:
    """A package that apt would have to remove, and an image that is nowhere: both are said at once."""
    control = "Package: site-time\\nVersion: 1\\nArchitecture: all\\nMaintainer: site\\n"
    control += "Conflicts: chrony\\nDescription: a clock of the site\\n"
    make = f"mkdir -p /tmp/site/DEBIAN && printf '{control}' >/tmp/site/DEBIAN/control"
    owner.on("node6", "sh", "-ec", f"{make} && dpkg-deb -b /tmp/site /tmp/site.deb && dpkg -i /tmp/site.deb")
    before = owner.traces("node6")
    done = owner.play("setup", node_image="muster:none")
    assert done.status != 0
    assert "apt would remove site-time" in done.text
    assert "muster:none is neither on this host nor on this machine" in done.text
    assert owner.traces("node6") == before
