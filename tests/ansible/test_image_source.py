"""A node's image comes from its registry, or from this machine if the registry does not give it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, ROOT, run
from tests.parallel import NUMBER
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "images.test/team/node:1"
ENGINE = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$1" in
  pull) echo "Error response from daemon: no basic auth credentials" >&2; exit {status} ;;
  image) exit 1 ;;
  save) echo layers > "$3" ;;
esac
"""
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars:
    muster_engine_command: {folder}/docker
    muster_folder: {folder}
    muster_seen: {{folders: [], new_packages: {{}}}}
    muster_present: []
    node_image: {image}
    node_image_archive: ""
    node_record: {folder}/lib/node.json
    preflight_image_source: registry
    preflight_image_is_here: {is_here}
  tasks:
    - ansible.builtin.import_role: {{name: node, tasks_from: image, rolespec_validate: false}}
"""


@pytest.mark.parametrize(
    ("status", "is_here", "calls"),
    [(0, False, ["pull"]), (1, True, ["pull", "image", "save", "load"]), (1, False, ["pull"])],
    ids=["pulled", "copied", "nowhere"],
)
def test_an_image_is_pulled_or_copied(tmp_path: Path, status: int, is_here: bool, calls: list[str]) -> None:
    (tmp_path / "docker").write_text(ENGINE.format(folder=tmp_path, status=status))
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "play.yml").write_text(
        PLAY.format(folder=tmp_path, image=IMAGE, is_here=str(is_here).lower())
    )
    env = os.environ | {
        "PATH": f"{tmp_path}:{PATH}",
        "ANSIBLE_CONFIG": str(BOOKS / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(BOOKS / "roles"),
        "ANSIBLE_NOCOLOR": "1",
    }
    (tmp_path / "hosts.txt").write_text("node1\n")
    done = run("ansible-playbook", "play.yml", "--inventory", "hosts.txt", cwd=tmp_path, env=env)
    text = done.stdout + done.stderr
    made = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert (made, done.returncode) == (calls, 2 if status and not is_here else 0), text
    lack = f"node1: its engine cannot pull {IMAGE}: Error response from daemon: no basic auth credentials"
    assert (lack in " ".join(text.split())) is bool(status and not is_here)
    assert not list(tmp_path.glob("**/image.tar"))


# -- the node's sshd_config, fitted in the image's build to whatever sshd its base has --


DOCKER = ROOT / "docker"
PENALTIES = "PerSourcePenalties"
# An sshd of a certain age, as far as its configuration: it reads the file, and those that it includes.
SSHD = """#!/bin/sh
while getopts tf:h: option; do [ "$option" = f ] && config=$OPTARG; done
folder=$(sed -n 's/^Include //p' "$config")
bad=$(cat "$config" $folder 2>/dev/null | grep -oE '^({unknown})' | head -n 1)
[ -z "$bad" ] || {{ echo "$config: line 1: Bad configuration option: $bad" >&2; exit 255; }}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The node's sshd_config, with its folder of included files beside it."""
    path = tmp_path / "sshd_config"
    text = (DOCKER / "sshd_config").read_text()
    path.write_text(text.replace("/etc/muster/sshd_config.d", f"{path}.d"))
    assert f"Include {path}.d/*.conf" in path.read_text()
    return path


def fit(config: Path, unknown: str) -> tuple[int, list[str], str]:
    """What the build's step makes of it, for an sshd that does not know these options."""
    sshd = config.parent / "sshd"
    sshd.write_text(SSHD.format(unknown=unknown))
    sshd.chmod(0o755)
    done = run(
        "bash",
        str(DOCKER / "build/sshd.sh"),
        str(sshd),
        env={"PATH": "/usr/bin:/bin", "SSHD_CONFIG": str(config)},
    )
    return done.returncode, [path.read_text() for path in Path(f"{config}.d").glob("*.conf")], done.stderr


def test_an_sshd_before_9_8_is_not_told_what_it_does_not_know(config: Path) -> None:
    status, extra, said = fit(config, unknown=PENALTIES)
    assert (status, extra) == (0, []), said


def test_a_newer_sshd_locks_no_address_out(config: Path) -> None:
    status, extra, said = fit(config, unknown="Nothing")
    assert (status, extra) == (0, [f"{PENALTIES} no\n"]), said


def test_the_nodes_sshd_leaves_out_what_hardening_does(config: Path) -> None:
    trust = (ROOT / "ansible/roles/hardening/vars/main.yml").read_text()
    broken = re.findall(
        r"^  (\w+):\n    names: (\S+)$", trust.partition("broken_algorithms:")[2], re.MULTILINE
    )
    assert len(broken) == 3
    assert {f"{name} -{names}" for name, names in broken} <= {*config.read_text().splitlines()}


def test_a_configuration_that_sshd_does_not_take_ends_the_build(config: Path) -> None:
    status, _, said = fit(config, unknown="MaxStartups")
    assert status != 0
    assert "Bad configuration option: MaxStartups" in said


# -- with a real sshd of each age, on the bases that can be had without CUDA --

NAME = f"muster-login-test{NUMBER or ''}"
DOCKERFILE = ("--file", str(DOCKER / "Dockerfile"), "--target", "login", "--build-arg", "FLAVOR=none")


@pytest.fixture(params=["trixie", "bookworm"])
def login(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A running container of the image's part that lets in, on one release of Debian: release and name."""
    release, tag = request.param, f"{NAME}:{request.param}"
    base = ("--build-arg", f"RUNTIME=debian:{release}-slim", "--tag", tag, str(ROOT))
    built = run("docker", "buildx", "build", "--load", "--quiet", *DOCKERFILE, *base)
    assert built.returncode == 0, built.stderr
    keys = ("--env=NODES=node1:2299", f"--env=MUSTER_DIR={tmp_path}", f"--volume={tmp_path}:/muster")
    trust = tmp_path / "node1"
    words = ("--user=root", "--network=none", f"--volume={trust}:/trust/node1", *keys, tag)
    made = run("docker", "run", "--rm", *words, "/usr/libexec/muster/make-keys")
    assert made.returncode == 0, made.stderr
    node = ("--hostname=node1", "--cap-drop=ALL", f"--volume={trust}:/etc/muster/ssh:ro", tag)
    started = run("docker", "run", "--detach", "--name", NAME, *node)
    assert started.returncode == 0, started.stderr
    yield release, NAME
    run("docker", "rm", "--force", NAME)


@pytest.mark.soak
def test_a_node_of_any_base_lets_in_who_has_the_clusters_key(login: tuple[str, str]) -> None:
    release, name = login

    def version() -> str:
        return run("docker", "exec", name, "ssh", "node1", "ssh -V 2>&1; id -un").stdout

    said = wait_until(version, "a login", patience=200.0)
    extra = run("docker", "exec", name, "ls", "/etc/muster/sshd_config.d").stdout.split()
    if release == "bookworm":  # older than Ubuntu 24.04's 9.6: neither knows penalties
        assert ("OpenSSH_9.2" in said, extra) == (True, []), said
    else:
        assert ("OpenSSH_10.0" in said, extra) == (True, ["10-penalties.conf"]), said
    assert said.endswith("\nmuster\n")
