"""The node's sshd_config, fitted in the image's build to whatever sshd its base has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.bare_hosts import ROOT, run
from tests.parallel import NUMBER
from tests.waiting import wait_until

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
