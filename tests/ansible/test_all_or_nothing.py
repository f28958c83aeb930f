"""Setup changes no host before every host has passed every check, and reports each obstacle once."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, Hosts, recap, run
from tests.ansible.rendering import filtered
from tests.terminals import shown_on

if TYPE_CHECKING:
    from collections.abc import Mapping

FULL = 10**9  # MB of free space that no disk has


def unexamined(**probe: Any) -> str:
    """The obstacle of a host that does not answer."""
    found = filtered("preflight", "muster_unfit", ["node1"], [], {"node1": {"preflight_probe": probe}})
    (text,) = found["node1"]
    return str(text)


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (
            {
                "unreachable": True,
                "msg": "Task failed: Failed to connect to the host via ssh: ssh: connect to host 10.0.0.1 "
                "port 22: Connection refused",
            },
            "cannot log in: ssh: connect to host 10.0.0.1 port 22: Connection refused",
        ),
        (
            {
                "unreachable": True,
                "msg": 'Data could not be sent to remote host "node1". Make sure this host can be reached '
                "over ssh: ssh: Could not resolve hostname node1: Name or service not known\r\n",
            },
            "cannot log in: ssh: Could not resolve hostname node1: Name or service not known",
        ),
        (
            {"rc": 127, "msg": "The module interpreter '/usr/bin/python3' was not found."},
            "it has no python3; install it (apt-get install python3)",
        ),
        (
            {"msg": "Task failed: Missing sudo password"},
            "sudo asks for a password there; give it once for all hosts: muster setup -- --ask-become-pass",
        ),
        (
            {"rc": 1, "msg": "non-zero return code", "stderr": "Trace\nOSError: no"},
            "cannot be examined: OSError: no",
        ),
        ({}, "cannot be examined: for the reason, add -- -v"),
    ],
    ids=["refused", "no such name", "no Python", "sudo", "a failure there", "nothing known"],
)
def test_a_host_that_does_not_answer_is_an_obstacle_with_its_reason(probe: dict[str, Any], said: str) -> None:
    assert unexamined(**probe) == said


def test_hosts_with_the_same_obstacle_share_a_line() -> None:
    hostvars: Mapping[str, Mapping[str, Any]] = {
        "node1": {"preflight_problems": ["no disk", "the name node1 is 127.0.1.1 here"]},
        "node2": {"preflight_problems": ["no disk", "no disk", "the name node2 is 127.0.1.1 here"]},
        "node3": {},
        "node4": {"preflight_seen": {}},
    }
    found = filtered("preflight", "muster_unfit", [*hostvars], ["node1", "node2", "node3"], hostvars)
    assert [*found] == ["node1", "node2", "node4"]
    assert str(filtered("preflight", "muster_report", found)).splitlines() == [
        "node[1-2]: no disk",
        "node[1-2]: the name node[1-2] is 127.0.1.1 here",
        "node4: cannot be examined; the reason is above",
    ]


@pytest.fixture
def unfit(tmp_path: Path) -> list[str]:
    """A preview of setup: of this machine, twice and without space, and of a host that is nowhere."""
    hosts_file = tmp_path / "hosts.txt"
    hosts_file.write_text("".join(f"{name} slots=1\n" for name in ("here1", "here2", "nowhere.invalid")))
    choices = {"muster_stack": "bare", "bare_packages": [], "preflight_disk_free_mb": FULL}
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "cluster.yml").write_text(json.dumps(choices))
    (tmp_path / "host_vars").mkdir()
    for name in ("here1", "here2"):
        here = {"ansible_connection": "local", "ansible_become": False}
        (tmp_path / "host_vars" / f"{name}.yml").write_text(json.dumps(here))
    return ["ansible-playbook", "setup.yml", "--check", "--inventory", str(hosts_file)]


def environment(**more: str) -> dict[str, str]:
    """As of a login over SSH, by which the hosts are reached."""
    return (
        os.environ
        | {"PATH": PATH, "ANSIBLE_NOCOLOR": "1", "SSH_CONNECTION": "192.0.2.1 9 192.0.2.2 22"}
        | more
    )


@pytest.mark.skipif(not shutil.which("ansible-playbook", path=PATH), reason="no Ansible here")
def test_every_host_is_examined_and_each_obstacle_reported_once_before_any_change(unfit: list[str]) -> None:
    done = run(*unfit, cwd=BOOKS, env=environment())
    assert done.returncode == 2, done.stdout + done.stderr
    report = done.stdout.partition("[preflight : Stop before the first change]")[2]
    lost = "nowhere.invalid: cannot log in: ssh: Could not resolve hostname nowhere.invalid"
    for text in (f"MB free; {FULL} MB are needed", lost):
        assert done.stdout.count(text) == report.count(text)
        assert 1 <= report.count(text) <= 2
    assert "Nothing was changed on any host.\n" in report
    assert "TASK [ssh_trust" not in done.stdout
    assert {name: host["failed"] for name, host in recap(done.stdout).items()}["nowhere.invalid"] == 1
    assert "[ERROR]" not in done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("ansible-playbook", path=PATH), reason="no Ansible here")
def test_a_host_that_cannot_be_reached_stops_only_a_setup_that_names_it(unfit: list[str]) -> None:
    for added, is_stopped in (("here1", False), ("nowhere.invalid", True)):
        done = run(
            *unfit, "--extra-vars", json.dumps({"muster_added": [added]}), cwd=BOOKS, env=environment()
        )
        report = done.stdout.partition("[preflight : Stop before the first change]")[2]
        assert f"MB free; {FULL} MB are needed" in report, done.stdout + done.stderr
        assert ("nowhere.invalid: cannot log in" in report) is is_stopped
        failed = {name: host["failed"] for name, host in recap(done.stdout).items()}
        assert failed["nowhere.invalid"] == is_stopped


@pytest.mark.skipif(not shutil.which("ansible-playbook", path=PATH), reason="no Ansible here")
@pytest.mark.parametrize("limited", [False, True])
def test_no_key_is_rotated_without_a_host_and_no_other_is_blamed(unfit: list[str], limited: bool) -> None:
    command = [word.replace("setup.yml", "rotate-keys.yml") for word in unfit]
    done = run(*command, *["--limit=here1,here2"] * limited, cwd=BOOKS, env=environment())
    said = " ".join(done.stdout.split())
    assert (
        f"without nowhere.invalid none was changed: run it {'without --limit' if limited else 'again'}"
        in said
    )
    failed = {name: host["failed"] for name, host in recap(done.stdout).items()}
    assert (done.returncode > 0, failed["here1"], failed["nowhere.invalid"]) == (True, 0, 1)


@pytest.mark.skipif(not shutil.which("ansible-playbook", path=PATH), reason="no Ansible here")
def test_on_a_terminal_no_line_of_an_obstacle_is_wider_than_it(tmp_path: Path) -> None:
    words = "word " * 60
    book = tmp_path / "book.yml"
    book.write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        f"    - ansible.builtin.fail: {{msg: 'node1: {words}end'}}\n"
    )
    master, slave = pty.openpty()
    with subprocess.Popen(
        ["ansible-playbook", str(book)], cwd=BOOKS, stdout=slave, stderr=slave, env=environment(COLUMNS="80")
    ):
        os.close(slave)
        shown = shown_on(master)
    assert "end" in shown
    lines = [line for line in shown.splitlines() if "word" in line]
    assert len(lines) > 3
    assert max(map(len, lines)) <= 80
    assert "FAILED" not in shown
    assert "Origin" not in shown


PARTS = ("--tags", "ssh_trust")


@pytest.mark.soak
def test_unfit_hosts_stop_setup(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    hosts = Hosts(tmp_path_factory.mktemp("unfit"), ["node4", "node5", "node3"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.compose("rm", "--force", "--stop", "node3")  # it does not answer
    hosts.start("node4", "node5")
    hosts.pin("node3", "192.0.2.3", "ssh-ed25519 AAAA")
    unfit = hosts.folder / "host_vars"
    unfit.mkdir()
    (unfit / "node5.yml").write_text(json.dumps({"preflight_disk_free_mb": FULL}))
    before = {name: hosts.traces(name) for name in ("node4", "node5")}
    done = hosts.play("setup", *PARTS)
    assert done.status == 2, done.text
    assert "Nothing was changed on any host. To set up node4 alone: muster setup --" in done.text
    assert "node5: /var has" in done.text
    assert "node3: cannot log in: ssh: connect to host 192.0.2.3" in done.text
    assert {name: hosts.traces(name) for name in ("node4", "node5")} == before
    assert not hosts.muster.exists()

    done = hosts.play("setup", *PARTS, muster_leave_out_unfit=True)
    assert done.status == 0, done.text
    fit = hosts.folder / "hosts.fit.txt"
    assert f"Launch on the other hosts: muster launch --hosts {fit}" in " ".join(done.text.split())
    assert fit.read_text().splitlines()[1:] == ["node4 slots=2 user=muster"]
    assert hosts.traces("node5") == before["node5"]
    texts = [file.read_text() for file in hosts.muster.iterdir() if file.name != ".gitignore"]
    texts += [
        hosts.on(
            "node4", "sh", "-c", "cat /etc/ssh/ssh_known_hosts /etc/muster/ssh/a* /etc/ssh/ssh_config.d/60*"
        )
    ]
    assert all("node4" in text or "node" not in text for text in texts)
    assert not [text for text in texts if "node5" in text or "node3" in text]
    assert hosts.driver("node4", "id -un").stdout == "muster\n"

    (unfit / "node5.yml").unlink()
    hosts.names = ["node4", "node5"]
    done = hosts.play("setup", *PARTS)
    assert done.status == 0, done.text
    assert not fit.exists()
    assert hosts.driver("node5", "id -un").stdout == "muster\n"

    (unfit / "node5.yml").write_text(json.dumps({"preflight_disk_free_mb": FULL}))
    done = hosts.play("setup", *PARTS, muster_leave_out_unfit=True)
    assert done.status == 0, done.text
    (unfit / "node5.yml").unlink()
    hosts.names = ["node4"]
    done = hosts.play("setup", *PARTS)
    assert done.status == 0, done.text
    assert "not cleaned: node5. Do: muster setup --remove node5" in " ".join(done.text.split())
    done = hosts.play("teardown", teardown_hosts="node5", teardown_remove_data=True)
    assert done.status == 0, done.text
    assert hosts.traces("node5") == before["node5"]
    done = hosts.play("setup", *PARTS)
    assert (done.status, "node5" in done.text) == (0, False), done.text
