"""A setup that fails on one host leaves every host as it was, and says so in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.ansible.bare_hosts import Hosts, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak

PARTS = ("--tags", "ssh_trust,time_sync")


class Fault(NamedTuple):
    """What is wrong with a host, in shell; how it is repaired; and what setup prints."""

    plant: str
    repair: str
    printed: str
    is_found_before: bool
    host: str = "node5"


FAULTS = {
    "no download": Fault(
        "mkdir /kept && mv /var/cache/apt/archives/chrony_*.deb /kept/"
        " && cp -a /etc/apt/sources.list /var/lib/apt/lists /kept/"
        " && sed -i 's,://[^/ ]*/,://127.0.0.1:9/,' /etc/apt/sources.list"
        " && cd /var/lib/apt/lists && for list in *_dists_*; do mv $list 127.0.0.1:9_${list#*_}; done",
        "mv /kept/sources.list /etc/apt/ && rm -r /var/lib/apt/lists && mv /kept/lists /var/lib/apt/"
        " && mv /kept/*.deb /var/cache/apt/archives/ && rmdir /kept",
        "apt cannot download what would be installed: E: ",
        True,
    ),
    "sshd forbids keys": Fault(
        "printf 'Match User muster\\n  PubkeyAuthentication no\\n' > /etc/ssh/sshd_config.d/05-site.conf",
        "rm /etc/ssh/sshd_config.d/05-site.conf",
        "pubkeyauthentication no (/etc/ssh/sshd_config.d/05-site.conf)",
        True,
    ),
    "read-only homes": Fault(
        "! touch /home/here",
        "true",
        "no home can be made for the account muster in /home: Read-only file system",
        True,
        "node9",
    ),
    "PAM refuses": Fault(
        "cp -a /etc/pam.d/sshd /root/ && echo '-:muster:ALL' > /etc/security/site.conf"
        " && echo 'account required pam_access.so accessfile=/etc/security/site.conf' >> /etc/pam.d/sshd",
        "mv /root/sshd /etc/pam.d/ && rm /etc/security/site.conf",
        "node5 Require an sshd that lets everyone in all",
        False,
    ),
    "chrony cannot start": Fault(
        "mkdir -p /etc/systemd/system/chrony.service.d"
        " && printf '[Service]\\nExecStartPre=/bin/false\\n'"
        " > /etc/systemd/system/chrony.service.d/site.conf",
        "rm -r /etc/systemd/system/chrony.service.d",
        "node5 Restart chrony all",
        False,
    ),
}


def on(name: str, hosts: Hosts, script: str) -> None:
    """Run a script as root."""
    done = run("docker", "exec", hosts.container(name), "sh", "-ec", script)
    assert done.returncode == 0, done.stdout + done.stderr


def state(hosts: Hosts) -> dict[str, set[str]]:
    """All that setup could leave on each host."""
    downloads = "find /var/cache/muster 2>/dev/null || true"
    return {
        name: hosts.traces(name) | {*hosts.on(name, "sh", "-c", downloads).split()} for name in hosts.names
    }


def differences(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, set[str]]:
    return {name: before[name] ^ after[name] for name in before if before[name] ^ after[name]}


def started(operator: Path, folder: Path, *names: str) -> Hosts:
    hosts = Hosts(folder, [*names])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.start(*hosts.names)
    return hosts


@pytest.fixture(scope="module")
def two(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """A bare host, one to plant faults on, and one that has a fault."""
    return started(operator, tmp_path_factory.mktemp("two"), "node4", "node5", "node9")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_host_that_fails_leaves_all_as_they_were(two: Hosts, fault: Fault) -> None:
    two.names = ["node4", fault.host]
    on(fault.host, two, fault.plant)
    try:
        before = state(two)
        done = two.play("setup", *PARTS)
        printed = " ".join(done.text.split())
        assert done.status == 2, done.text
        assert fault.printed in printed, done.text
        assert ("Nothing was changed on any host." in printed) is fault.is_found_before
        failed = [name for name, host in done.recap.items() if host["failed"]]
        assert failed == [fault.host]
        assert not differences(before, state(two))
        assert not two.muster.exists()
    finally:
        on(fault.host, two, fault.repair)


def test_a_host_that_was_set_up_keeps_what_it_had(two: Hosts) -> None:
    two.names = ["node4"]
    assert two.play("setup", *PARTS).status == 0
    two.names = ["node4", "node5"]
    fault = FAULTS["PAM refuses"]
    on("node5", two, fault.plant)
    before = state(two)
    here = {path.name: path.read_text() for path in two.muster.iterdir()}
    done = two.play("setup", *PARTS)
    assert done.status == 2, done.text
    assert not differences(before, state(two))
    assert {path.name: path.read_text() for path in two.muster.iterdir()} == here
    assert two.driver("node4", "id -un").stdout == "muster\n"
