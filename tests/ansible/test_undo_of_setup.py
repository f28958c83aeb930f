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
    """What is wrong with node5, in shell, how it is put right, and what setup says of it."""

    plant: str
    mend: str
    said: str
    is_found_before: bool


FAULTS = {
    "no download": Fault(
        "mkdir /kept && mv /var/cache/apt/archives/chrony_*.deb /kept && mv /etc/apt/sources.list.d /kept/"
        " && mkdir /etc/apt/sources.list.d && sed 's,URIs: .*,URIs: http://127.0.0.1:9/debian,'"
        " /kept/sources.list.d/debian.sources > /etc/apt/sources.list.d/debian.sources"
        " && cp -a /var/lib/apt/lists /kept/ && cd /var/lib/apt/lists && for list in *_*; do"
        " mv $list $(echo $list | sed 's/^[^_]*_debian_/127.0.0.1:9_debian_/'); done",
        "rm -r /etc/apt/sources.list.d && mv /kept/sources.list.d /etc/apt/ && rm -r /var/lib/apt/lists"
        " && mv /kept/lists /var/lib/apt/ && mv /kept/*.deb /var/cache/apt/archives/ && rmdir /kept",
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
        "mount --bind /home /home && mount -o remount,ro,bind /home",
        "umount /home",
        "no home can be made for the account muster in /home: Read-only file system",
        True,
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
    """Run a script as root, with all capabilities if it mounts something."""
    options = ("--privileged",) if "mount" in script else ()
    done = run("docker", "exec", *options, hosts.container(name), "sh", "-ec", script)
    assert done.returncode == 0, done.stdout + done.stderr


def pair(operator: Path, folder: Path) -> Hosts:
    hosts = Hosts(folder, ["node4", "node5"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.start(*hosts.names)
    return hosts


@pytest.fixture(scope="module")
def two(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Two bare hosts."""
    return pair(operator, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_host_that_fails_leaves_all_as_they_were(two: Hosts, fault: Fault) -> None:
    on("node5", two, fault.plant)
    try:
        before = {name: two.traces(name) for name in two.names}
        done = two.play("setup", *PARTS)
        said = " ".join(done.text.split())
        assert done.status == 2, done.text
        assert fault.said in said, done.text
        assert ("Nothing was changed on any host." in said) is fault.is_found_before
        assert {name: host["failed"] for name, host in done.recap.items()} == {"node4": 0, "node5": 1}
        assert {name: two.traces(name) ^ before[name] for name in two.names} == {
            "node4": set(),
            "node5": set(),
        }
        assert not two.muster.exists()
    finally:
        on("node5", two, fault.mend)


def test_a_host_that_was_set_up_keeps_what_it_had(two: Hosts) -> None:
    two.names = ["node4"]
    assert two.play("setup", *PARTS).status == 0
    two.names = ["node4", "node5"]
    fault = FAULTS["PAM refuses"]
    on("node5", two, fault.plant)
    before = {name: two.traces(name) for name in two.names}
    here = {path.name: path.read_text() for path in two.muster.iterdir()}
    done = two.play("setup", *PARTS)
    assert done.status == 2, done.text
    assert {name: two.traces(name) ^ before[name] for name in two.names} == {"node4": set(), "node5": set()}
    assert {path.name: path.read_text() for path in two.muster.iterdir()} == here
    assert two.driver("node4", "id -un").stdout == "muster\n"
