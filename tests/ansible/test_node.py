"""A bare host becomes a node container with an engine of its own, runs a job in it, and is bare again.

The image comes from this machine's engine, with no word about it: what the README's first command does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.ansible.bare_hosts import HAS_TORCH, Hosts, run
from tests.ansible.test_setup import RANKS, launch
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "muster:cpu"
CHECKS = {
    *("ssh_trust.pairs", "ssh_trust.unknown_host_key", "ssh_trust.wrong_key", "ssh_trust.password"),
    *("ssh_trust.driver", "ssh_trust.finished", "ssh_trust.files", "time_sync.files", "time_sync.service"),
    *("time_sync.synchronised", "time_sync.spread", "time_sync.alone"),
    *("container_engine.answers", "container_engine.service", "container_engine.packages"),
    *("node.container", "node.unit", "leases.folder"),
}

pytestmark = [
    pytest.mark.soak,  # an engine is installed and an image copied: about ten minutes
    pytest.mark.skipif(not HAS_TORCH, reason="the image is of Debian 13, and so are the hosts"),
]
HOME = "/var/lib/muster-node/home"
CHECKPOINT = "/home/muster/out/checkpoint"


@pytest.fixture(scope="module")
def engine(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A bare host on which an engine can run."""
    assert run("docker", "image", "inspect", IMAGE).returncode == 0, f"no image {IMAGE}: docker compose build"
    hosts = Hosts(tmp_path_factory.mktemp("engine"), ["node6"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.variables |= {"muster_stack": "node", "node_image": IMAGE}
    hosts.compose("rm", "--force", "--stop", "--volumes", "node6")
    hosts.start("node6")
    hosts.on("node6", "chmod", "710", "/var/lib/docker")  # a mount point, which no teardown can remove
    yield hosts


@pytest.fixture(scope="module")
def before(engine: Hosts) -> set[str]:
    return engine.traces("node6")


def test_setup_brings_an_engine_and_the_node_container(engine: Hosts, before: set[str]) -> None:
    done = engine.play("setup")
    assert done.status == 0, done.text
    done = engine.play("setup")
    assert (done.status, done.changed) == (0, 0), done.text
    done = engine.play("verify")
    assert done.status == 0, done.text
    assert {check["id"] for check in engine.checks()} == CHECKS


def test_the_containers_user_gets_no_keys_of_a_host_account_of_its_number(engine: Hosts) -> None:
    key = "/etc/muster/ssh/id_ed25519"
    assert engine.on("node6", "id", "--user", "op") == "1000\n"
    assert engine.on("node6", "stat", "--format=%u", key) == "1000\n"
    assert not engine.on("node6", "runuser", "--user", "op", "--", "cat", key)


def test_a_host_key_that_a_run_left_to_root_is_given_to_the_containers_user(engine: Hosts) -> None:
    key = "/etc/muster/ssh/ssh_host_ed25519_key"
    engine.on("node6", "chown", "0", key)  # as a run leaves it that ends just after it has made the key
    done = engine.play("setup", "--tags", "ssh_trust")
    assert (done.status, done.changes("node6")) == (0, ["ssh_trust : Give it to the container's user"]), (
        done.text
    )
    assert engine.on("node6", "stat", "--format=%u %a", key) == "1000 600\n"


def test_a_host_that_logs_in_to_no_other_has_no_key(engine: Hosts) -> None:
    trust: dict[str, Any] = {"ssh_trust_heads": [], "verify_roles": ["ssh_trust", "node"]}
    assert engine.play("verify", **trust).status != 0
    failed = {str(check["id"]): str(check["detail"]) for check in engine.checks() if not check["ok"]}
    assert {*failed} == {"ssh_trust.pairs", "ssh_trust.files"}
    assert failed["ssh_trust.pairs"] == "node6: status 0: let in"
    assert (
        "/etc/muster/ssh/id_ed25519 (only the first host has the cluster's key)" in failed["ssh_trust.files"]
    )
    parts = ("--tags", "ssh_trust,node")
    assert engine.play("setup", *parts, ssh_trust_heads=[]).status == 0
    assert "id_ed25519" not in engine.on("node6", "ls", "/etc/muster/ssh").split()
    assert engine.play("verify", **trust).status == 0
    assert engine.play("setup", *parts).status == 0
    assert engine.play("verify", verify_roles=trust["verify_roles"]).status == 0


def test_a_job_runs_in_it_with_no_further_step(engine: Hosts, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = launch(engine, tmp_path, "--script", "ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 1 on node6") >= 2


def test_it_comes_back_with_an_engine_that_was_stopped(engine: Hosts) -> None:
    engine.on("node6", "systemctl", "stop", "docker.socket", "docker.service")
    assert engine.on("node6", "systemctl", "is-active", "muster-node") == "inactive\n"
    engine.on("node6", "systemctl", "start", "docker.service")
    wait_until(lambda: engine.driver("node6", "echo in").stdout, "the driver's way in", patience=200.0)


def saved(engine: Hosts) -> str:
    """What the node container has of the checkpoint, once the driver gets in."""
    return wait_until(
        lambda: engine.driver("node6", f"cat {CHECKPOINT}; echo in").stdout,
        "the driver's way in",
        patience=200.0,
    )


def container(engine: Hosts) -> str:
    return engine.on("node6", "docker", "inspect", "--format", "{{.Id}} {{.Config.Image}}", "muster-node")


def test_a_checkpoint_outlives_the_container_the_engine_a_new_image_and_the_host(engine: Hosts) -> None:
    first = container(engine)
    assert engine.driver("node6", f"mkdir -p out && echo weights >{CHECKPOINT}").returncode == 0
    engine.on("node6", "systemctl", "restart", "docker.service")  # as an upgrade of the engine does
    assert saved(engine) == "weights\nin\n"
    assert container(engine) != first

    engine.on("node6", "docker", "tag", IMAGE, "muster:next")
    done = engine.play("setup", "--tags", "node", node_image="muster:next")
    assert done.status == 0, done.text
    assert container(engine).split()[1] == "muster:next"
    assert saved(engine) == "weights\nin\n"

    run("docker", "restart", "--time", "10", engine.container("node6"), timeout=120)
    engine.await_start("node6")
    assert saved(engine) == "weights\nin\n"


def test_what_it_is_told_of_volumes_and_options_reaches_the_container(engine: Hosts) -> None:
    engine.on("node6", "sh", "-c", "mkdir /tmp/data && echo digits >/tmp/data/set")
    words: dict[str, Any] = {
        "node_volumes": ["/tmp/data:/data:ro"],
        "node_devices": ["/dev/zero:/dev/nil"],
        "node_run_options": ["--env=TEAM=vision"],
    }
    done = engine.play("setup", "--tags", "node", **words)
    assert done.status == 0, done.text
    assert engine.driver("node6", "cat /data/set; ls /dev/nil").stdout == "digits\n/dev/nil\n"
    assert engine.on("node6", "docker", "exec", "muster-node", "printenv", "TEAM") == "vision\n"


# NVIDIA's tool, as far as setup has a use for it: a description of devices, here of one variable.
NVIDIA_CTK = """#!/bin/sh
[ "$1 $2" = "cdi generate" ] || exit 1
edits='{"env": ["GPUS=all"]}'
device="{\\"name\\": \\"all\\", \\"containerEdits\\": $edits}"
kind='"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu"'
echo "{$kind, \\"devices\\": [$device]}" >"${3#--output=}"
"""


def test_gpus_come_by_cdi_and_are_there_after_a_reload_of_systemd(engine: Hosts) -> None:
    script = "cat >/usr/local/bin/nvidia-ctk; chmod 755 /usr/local/bin/nvidia-ctk"
    name = engine.container("node6")
    run("docker", "exec", "--interactive", name, "sh", "-c", script, stdin=NVIDIA_CTK)
    parts = ("--tags", "container_engine,node")
    done = engine.play("setup", *parts, container_engine_nvidia="yes")
    assert done.status == 0, done.text
    again = engine.play("setup", *parts, container_engine_nvidia="yes")
    engine.on("node6", "systemctl", "daemon-reload")
    # Of its first process: what the description adds is not in the environment of `docker exec`.
    environment = engine.on("node6", "docker", "exec", "muster-node", "cat", "/proc/1/environ")
    assert "GPUS=all" in environment.split("\0")
    assert (again.status, again.changed) == (0, 0), again.text
    engine.on("node6", "rm", "/usr/local/bin/nvidia-ctk")


def test_a_container_that_refuses_the_host_is_quoted_and_not_started_for_ever(engine: Hosts) -> None:
    words = "the NVIDIA driver of this host is too old"
    engine.on(
        "node6", "sh", "-c", f"printf '#!/bin/sh\\necho {words} >&2; exit 3\\n' >/refuse; chmod 755 /refuse"
    )
    done = engine.play("setup", "--tags", "node", node_volumes=["/refuse:/usr/libexec/muster/start:ro"])
    assert done.status != 0
    assert words in done.text
    state = engine.on("node6", "systemctl", "show", "--property=ActiveState,NRestarts", "muster-node").split()
    assert sorted(state) == ["ActiveState=failed", "NRestarts=0"]
    engine.on("node6", "rm", "/refuse")


def test_teardown_keeps_what_jobs_wrote_unless_it_is_told_otherwise(engine: Hosts) -> None:
    done = engine.play("teardown")
    assert done.status == 0, done.text
    assert engine.on("node6", "cat", f"{HOME}/out/checkpoint") == "weights\n"


def test_teardown_of_a_node_leaves_no_trace(engine: Hosts, before: set[str]) -> None:
    done = engine.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    after = engine.traces("node6")
    assert (before - after, after - before) == (set(), set())
    done = engine.play("verify", verify_state="absent", verify_json=str(engine.folder / "report.json"))
    assert done.status == 0, done.text
