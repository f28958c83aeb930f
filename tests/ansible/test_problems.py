"""What preflight says of a host, and what a node container's unit and key are, for many kinds of hosts."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from tests.ansible.bare_hosts import BOOKS
from tests.ansible.rendering import problems_of, render, render_value
from tests.ansible.test_observe import observe

ENGINE = {"command": "/usr/bin/docker", "kind": "docker", "answers": True, "version": "28.2.2", "cdi": True}
SEEN: dict[str, Any] = {
    "os": {"id": "debian", "version": "13"},
    "python": "3.13.5",
    "systemd": True,
    "disk_free_mb": 1 << 20,
    "hostname": "node1",
    "host_keys": {"ssh-ed25519": "AAAA"},
    "names": {"node1": ["10.0.0.1"]},
    "sshd_refuses": [],
    "sshd_without": {"settings": {"maxstartups": "10:30:100"}, "defaults": {}, "reads_dropins": True},
    "account": {},
    "engine": ENGINE | {"image": {"muster.flavor": "cpu"}},
    "gpu": False,
    "nvidia_cards": 0,
    "nvidia_devices": [],
    "nvidia_ctk": "",
    "infiniband": False,
    "selinux": False,
    "node_home_owner": "",
    "packages": ["chrony", "docker-ce"],
    "new_packages": {},
    "units": {"docker": {"active": True, "enabled": True, "stale": False}},
    "files": {},
    "folders": {},
    "jobs": [],
    "hard_limits": {"memlock": -1, "nofile": 1 << 20},
}
CARDS: dict[str, Any] = {"nvidia_cards": 8, "gpu": True, "nvidia_devices": ["/dev/nvidia0", "/dev/nvidiactl"]}
CUDA: dict[str, Any] = {"engine": ENGINE | {"image": {"muster.flavor": "cuda"}}}
OLD: dict[str, Any] = {"engine": ENGINE | {"cdi": False, "image": {"muster.flavor": "cuda"}}}


def problems(stack: str = "node", choices: dict[str, object] | None = None, **seen: Any) -> str:
    given = {"muster_stack": stack, "muster_seen": SEEN | seen, "muster_known": {}} | (choices or {})
    return "\n".join(problems_of({"node1": {"addresses": ["10.0.0.1"]}}, **given))


def test_of_a_host_that_is_fit_there_is_nothing_to_say() -> None:
    assert [problems(stack) for stack in ("node", "bare")] == ["", ""]
    assert problems(**CARDS | CUDA) == ""


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (CARDS, "it has NVIDIA GPUs, and the image muster:cpu is for CPUs alone; take an image with CUDA"),
        (CUDA | {"nvidia_cards": 2}, "it has 2 NVIDIA GPU(s), and no driver is loaded"),
        (CARDS | OLD, "would have to be restarted to find NVIDIA's toolkit"),
        ({"engine": ENGINE | {"answers": False, "image": None}}, "is used as it is, but it does not answer"),
        (
            {"engine": ENGINE | {"image": None}},
            "the image muster:cpu is neither on this host nor on this machine",
        ),
        ({"node_home_owner": "33"}, "/var/lib/muster-node/home belongs to the account with the number 33"),
    ],
    ids=["CPU image", "no driver", "no toolkit", "engine stopped", "no image", "another's home"],
)
def test_what_stands_in_a_nodes_way_is_said_with_what_to_do(seen: dict[str, Any], said: str) -> None:
    text = problems(**seen)
    assert said in text
    assert len(text.splitlines()) == 1


def test_an_archive_of_the_image_that_is_not_here_is_named() -> None:
    seen = {"engine": ENGINE | {"image": None}}
    text = problems("node", {"node_image_archive": "/nowhere/image.tar"}, **seen)
    assert text == "node_image_archive: no file /nowhere/image.tar on this machine"


@pytest.mark.parametrize(
    ("name", "is_here", "has", "source"),
    [
        ("muster:cpu", True, {"muster.flavor": "cpu"}, "host"),
        ("muster:cpu", True, None, "here"),
        ("muster:cpu", False, None, ""),
        ("images.test/team/node:1", False, None, "registry"),
        ("images.test/team/node:1", True, None, "registry"),
        ("team/node", False, None, ""),
    ],
)
def test_the_source_of_an_image(name: str, is_here: bool, has: dict[str, str] | None, source: str) -> None:
    given = {
        "node_image": name,
        "node_image_archive": "",
        "preflight_image_here": {"rc": 0 if is_here else 1},
        "muster_seen": SEEN | {"engine": ENGINE | {"image": has}},
    }
    assert render_value("preflight", "preflight_image_from", {"node1": {}}, **given) == source


def test_gpus_that_are_to_be_left_alone_are_no_problem() -> None:
    assert problems(choices={"container_engine_nvidia": "no"}, **CARDS) == ""
    assert problems(choices={"container_engine_nvidia": False}, **CARDS) == ""  # YAML's own no


SSHD = SEEN["sshd_without"]
ACCOUNT = {
    "uid": 1001,
    "shell": "/bin/bash",
    "shell_runs": True,
    "home": "/home/muster",
    "groups": ["muster"],
    "ours": False,
    "data": True,
}


@pytest.mark.parametrize(
    ("settings", "account", "said"),
    [
        ({"allowusers": "op root"}, {}, "lets in only op root (AllowUsers); add muster"),
        ({"allowusers": "op alice@10.*"}, {}, "lets in only op alice@10.* (AllowUsers); add muster"),
        ({"denyusers": "muster"}, {}, "does not let muster in (DenyUsers muster)"),
        ({"denyusers": "must?r"}, {}, "does not let muster in (DenyUsers must?r)"),
        ({"denyusers": "alice muster@192.0.2.1"}, {}, ""),
        ({"allowgroups": "ssh"}, ACCOUNT, "lets in only the groups ssh (AllowGroups)"),
        ({"allowgroups": "muster"}, ACCOUNT, ""),
        ({"allowgroups": "mus*"}, {}, ""),
        ({"denygroups": "guests muster"}, ACCOUNT, "does not let the groups guests muster in (DenyGroups)"),
        ({"allowusers": "op muster@10.0.0.*"}, ACCOUNT, ""),
        ({"allowusers": "op m*"}, ACCOUNT, ""),
        (
            {},
            ACCOUNT | {"shell": "/usr/sbin/nologin"},
            "has the shell /usr/sbin/nologin, which ends each login; give it another (chsh",
        ),
        (
            {},
            ACCOUNT | {"shell": "/bin/zsh", "shell_runs": False},
            "has the shell /bin/zsh, which is not there or cannot be run",
        ),
    ],
)
def test_an_sshd_that_keeps_the_jobs_account_out_is_named(
    settings: dict[str, str], account: dict[str, Any], said: str
) -> None:
    groups = account.get("groups", ["muster"])
    text = problems(
        "bare",
        sshd_without=SSHD | {"settings": settings | {"port": "22"}},
        sshd_refuses=observe.sshd_refuses("muster", groups, settings),
        account=account,
    )
    assert said in text
    assert bool(text) == bool(said)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            {"keys_refused": {"192.0.2.9": ["pubkeyauthentication no (/etc/ssh/a.conf)"]}},
            "from 192.0.2.9: pubkeyauthentication no (/etc/ssh/a.conf); change that",
        ),
        ({"home_problem": "/home: Read-only file system"}, "account muster in /home: Read-only file system"),
    ],
)
def test_what_would_end_setup_later_is_named(seen: dict[str, Any], said: str) -> None:
    assert said in problems("bare", **seen)
    assert problems("bare", keys_refused={}, home_problem="") == ""


def test_an_sshd_that_reads_no_drop_ins_is_named() -> None:
    assert "does not read drop-ins" in problems("bare", sshd_without=SSHD | {"reads_dropins": False})


def test_an_sshd_that_says_nothing_is_left_alone() -> None:
    assert "look at the output there of: sshd -T" in problems("bare", sshd_without=SSHD | {"settings": {}})


def unit(choices: dict[str, object] | None = None, **seen: object) -> list[str]:
    given = {"muster_stack": "node", "muster_seen": SEEN | seen, "muster_port": 22} | (choices or {})
    text = render("node", "muster-node.service.j2", {"node1": {"addresses": ["10.0.0.1"]}}, **given)
    return [line.strip().removesuffix("\\").strip() for line in text.splitlines()]


def test_an_engine_with_cdi_gives_gpus_that_a_reload_of_systemd_does_not_take() -> None:
    lines = unit(**CARDS | CUDA)
    assert "--device nvidia.com/gpu=all" in lines
    assert "--gpus all" not in lines
    assert "ExecStartPre=/usr/bin/nvidia-ctk cdi generate --output=/run/cdi/nvidia.yaml" in lines


def test_an_engine_without_cdi_is_told_of_each_device_by_its_name() -> None:
    lines = unit(**CARDS | OLD)
    assert [line for line in lines if line.startswith(("--gpus", "--device"))] == [
        "--gpus all",
        "--device /dev/nvidia0",
        "--device /dev/nvidiactl",
    ]


def test_a_node_without_gpus_has_none_and_podman_needs_no_docker() -> None:
    podman = ENGINE | {"kind": "podman", "image": {}}
    lines = unit(engine=podman, units={"docker": {"active": False, "enabled": False, "stale": False}})
    assert not [line for line in lines if "gpu" in line or "docker.service" in line]
    assert "--volume /var/lib/muster-node/home:/home/muster" in lines


def test_a_node_has_no_gpus_where_they_are_to_be_left_alone() -> None:
    lines = unit({"container_engine_nvidia": "no"}, **CARDS | CUDA)
    assert not [line for line in lines if "gpu" in line or "nvidia" in line]


def test_root_loads_an_image_from_a_folder_that_nobody_else_writes_in() -> None:
    folder = str(PurePosixPath(render_value("node", "node_archive_copy", {"node1": {}})).parent)
    tasks = yaml.safe_load((BOOKS / "roles/node/tasks/image.yml").read_text())
    assert folder == render_value("node", "node_record | dirname", {"node1": {}})
    assert tasks[0]["ansible.builtin.file"] == {
        "path": "{{ node_record | dirname }}",
        "state": "directory",
        "mode": "0755",
    }
    assert folder == "/var/lib/muster"  # teardown removes it with all that a run left there


def test_memory_to_pin_is_in_kib_and_the_engine_takes_bytes() -> None:
    text = " ".join(unit({"muster_memlock": 8192}))
    assert "--ulimit memlock=8388608 " in text
    assert "--ulimit memlock=-1 " in " ".join(unit())


@pytest.mark.parametrize(
    ("state", "uid", "given"),
    [
        ("", "", False),
        ("0 0600 digest", "", False),
        ("1000 0600 digest", "", True),
        ("1000 0600 digest", "20001", False),
        ("20001 0600 digest", 20001, True),
        ("1000 0644 digest", "", False),
    ],
    ids=["missing", "cut short", "given", "another muster_uid", "a number", "readable for all"],
)
def test_a_node_containers_host_key_belongs_to_its_user(state: str, uid: object, given: bool) -> None:
    seen = SEEN | {"files": {"/etc/muster/ssh/ssh_host_ed25519_key": state}}
    node = {"muster_stack": "node", "muster_seen": seen, "muster_uid": uid}
    found = render_value("ssh_trust", "ssh_trust_node_key_is_given", {"node1": {}}, **node)
    assert found is given


@pytest.mark.parametrize(
    ("installed_by_setup", "there_now", "kind", "ours"),
    [
        (["docker.io"], ["docker.io"], "docker", True),
        (["docker.io"], ["docker-ce"], "docker", False),
        ([], ["docker.io"], "docker", False),
        ([], [], "", True),
        (["docker.io"], [], "", True),
    ],
    ids=["setup's", "the owner has replaced it", "the owner's", "none yet", "none any more"],
)
def test_an_engine_is_setups_as_long_as_its_package_is_there(
    installed_by_setup: list[str], there_now: list[str], kind: str, ours: bool
) -> None:
    record = {"container_engine": {"installed": installed_by_setup}}
    seen = SEEN | {"engine": ENGINE | {"kind": kind}, "packages": there_now, "new_packages": record}
    found = render_value("container_engine", "muster_engine_is_ours", {"node1": {}}, muster_seen=seen)
    assert found is ours


def test_hosts_get_this_machines_image_and_a_file_of_it_where_the_push_failed() -> None:
    hosts: dict[str, dict[str, Any]] = {
        "node1": {"node_image_source": "here", "node_pushed": {"rc": 0}},
        "node2": {"node_image_source": "here", "node_pushed": {"rc": 1}},
        "node3": {"node_image_source": "registry", "node_pushed": {"skipped": True}},
        "node4": {},
    }
    inventory = {name: host | {"inventory_hostname": name} for name, host in hosts.items()}
    names = ("node_hosts_without_image", "node_hosts_without_push")
    found = [render_value("node", name, inventory, ansible_play_hosts=list(hosts)) for name in names]
    assert found == [["node1", "node2"], ["node2"]]
