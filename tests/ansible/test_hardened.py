"""A hardened sshd, and jobs that run as an account that was there before: both stay as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import ADDRESSES, Hosts, run
from tests.ansible.rendering import render

if TYPE_CHECKING:
    from pathlib import Path

HARDENED = {
    "permitrootlogin": "no",
    "macs": "hmac-sha2-512-etm@openssh.com",
    "kexalgorithms": "curve25519-sha256",
    "maxstartups": "10:30:60",
    "logingracetime": "20",
}
PREPARE = """
printf '{lines}' >/etc/ssh/sshd_config.d/50-hardened.conf
systemctl reload ssh
useradd --create-home --shell /bin/sh --groups audio --password '*' ml
install -d -m 700 -o ml -g ml ~ml/.ssh
install -m 600 -o ml -g ml /home/op/.ssh/authorized_keys ~ml/.ssh/authorized_keys
echo paper >~ml/notes
"""
PARTS = ("--tags", "ssh_trust")


@pytest.fixture(scope="module")
def hardened(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """A hardened host, and jobs that are to run as its account ml."""
    hosts = Hosts(tmp_path_factory.mktemp("hardened"), ["node5"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.variables |= {"muster_user": "ml", "ssh_trust_login_seconds": 30}  # its 20 s are less
    hosts.start("node5", login="op")
    lines = "".join(f"{name} {value}\\n" for name, value in HARDENED.items())
    hosts.on("node5", "sh", "-c", PREPARE.format(lines=lines))
    return hosts


@pytest.fixture(scope="module")
def before(hardened: Hosts) -> set[str]:
    return hardened.traces("node5")


def settings(hosts: Hosts) -> dict[str, str]:
    """What sshd does for everyone."""
    said = hosts.on("node5", "sshd", "-T")
    return {
        name: value
        for name, _, value in (line.partition(" ") for line in said.splitlines())
        if name in HARDENED
    }


def own_key(hosts: Hosts, *command: str) -> str:
    """What ml gets with a key of its own, as before."""
    options = ("-F", "none", "-i", str(hosts.folder / "operator"), "-o", "BatchMode=yes")
    known = ("-o", f"UserKnownHostsFile={hosts.folder}/operator_known_hosts")
    return run("ssh", *options, *known, f"ml@{ADDRESSES['node5']}", *command).stdout


@pytest.mark.soak
def test_setup_loosens_nothing_of_a_hardened_sshd(hardened: Hosts, before: set[str]) -> None:
    assert settings(hardened) == HARDENED
    done = hardened.play("setup", *PARTS)
    assert done.status == 0, done.text
    assert settings(hardened) == HARDENED
    assert hardened.driver("node5", "id -un").stdout == "ml\n"
    done = hardened.play("setup", *PARTS)
    assert (done.status, done.changed) == (0, 0), done.text


@pytest.mark.soak
def test_an_account_that_was_there_before_keeps_shell_groups_and_keys(hardened: Hosts) -> None:
    assert own_key(hardened, "echo $0; id -nG").splitlines() == ["sh", "ml audio"]
    effective = hardened.on("node5", "sshd", "-T", "-C", "user=ml,host=x,addr=192.0.2.1").splitlines()
    assert "disableforwarding no" in effective
    done = hardened.play("verify", verify_roles=["ssh_trust"])
    assert done.status == 0, done.text


@pytest.mark.soak
def test_teardown_leaves_account_and_sshd_as_they_were(hardened: Hosts, before: set[str]) -> None:
    done = hardened.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    after = hardened.traces("node5")
    assert (before - after, after - before) == (set(), set())
    assert own_key(hardened, "cat notes") == "paper\n"


@pytest.mark.soak
def test_an_sshd_that_does_not_let_the_jobs_account_in_stops_setup(hardened: Hosts) -> None:
    extra = "/etc/ssh/sshd_config.d/60-only.conf"
    hardened.on("node5", "sh", "-c", f"echo 'AllowUsers op' >{extra}")
    done = hardened.play("setup", *PARTS)
    hardened.on("node5", "rm", extra)
    assert done.status != 0
    assert "its sshd lets in only op (AllowUsers); add ml" in done.text


DEFAULTS = {
    "maxstartups": "10:30:100",
    "kexalgorithms": "curve25519-sha256,ecdh-sha2-nistp256",
    "macs": "hmac-sha2-256,hmac-sha1",
    "hostkeyalgorithms": "ssh-ed25519,ecdsa-sha2-nistp256",
}


@pytest.mark.parametrize(
    ("own", "present", "absent"),
    [
        (
            {},
            ["MaxStartups 64:30:256", "KexAlgorithms -ecdh-sha2-*", "MACs -hmac-sha1*", "PermitRootLogin"],
            [],
        ),
        ({"macs": "hmac-sha2-512,hmac-sha1"}, ["MACs hmac-sha2-512\n"], ["MACs -"]),
        ({"macs": "hmac-sha1"}, [], ["MACs"]),
        ({"permitrootlogin": "forced-commands-only"}, [], ["PermitRootLogin"]),
        ({"logingracetime": "0"}, ["LoginGraceTime 30"], []),
        ({"maxstartups": "4:50:8"}, [], ["MaxStartups"]),
    ],
    ids=["OpenSSH's own", "one is broken", "all are broken", "root", "no grace time", "startups"],
)
def test_what_is_for_everyone_is_never_looser_than_before(
    own: dict[str, str], present: list[str], absent: list[str]
) -> None:
    settings = DEFAULTS | {"permitrootlogin": "yes", "logingracetime": "120"} | own
    seen = {
        "sshd": "10.0",
        "operator": {"client": "192.0.2.9", "login": "root"},
        "account": {},
        "sshd_without": {"settings": settings, "defaults": DEFAULTS},
    }
    text = render("ssh_trust", "sshd.conf.j2", {"node1": {"addresses": ["10.0.0.1"]}}, muster_seen=seen)
    assert [line for line in present if line not in text] == []
    assert [line for line in absent if line in text] == []
