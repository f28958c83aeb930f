"""verify finds whatever was changed on a host since setup, and names a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import Hosts, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak

KEYS, SSHD = "/etc/muster/ssh/authorized_keys", "/etc/ssh/sshd_config.d/10-muster.conf"
CHRONY = "/etc/chrony/muster.conf"
STRANGER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHugDaPm3Yt7vICHzFMUnB8nSkFeVR6SJMSlgh4Wsq+m stranger"
# What somebody does, in shell; the check that fails, and words of its detail. Each round is planted at once.
ROUNDS = (
    (
        (f"echo '{STRANGER}' >> {KEYS}", "ssh_trust.files", KEYS),
        (
            f"sed -i '/^# BEGIN/a node4 {STRANGER}' /etc/ssh/ssh_known_hosts",
            "ssh_trust.files",
            "/etc/ssh/ssh_known_hosts",
        ),
        (f"sed -i 's/MaxSessions .*/MaxSessions 63/' {SSHD}", "ssh_trust.files", SSHD),
        (f"touch -d '1 hour' {SSHD}", "ssh_trust.server", f"sshd has not read {SSHD}"),
        (
            "rm /etc/ssh/ssh_config.d/60-muster.conf",
            "ssh_trust.files",
            "/etc/ssh/ssh_config.d/60-muster.conf",
        ),
        ("echo >> /etc/security/limits.d/60-muster.conf", "ssh_trust.files", "limits.d/60-muster.conf"),
        ("chmod 644 /etc/muster/ssh/id_ed25519", "ssh_trust.files", "/etc/muster/ssh/id_ed25519"),
        (
            "echo 'muster ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/stranger",
            "ssh_trust.account",
            "sudo lets it run (ALL) NOPASSWD: ALL; remove the rule",
        ),
        ("usermod -aG shadow muster", "ssh_trust.account", "do: gpasswd --delete muster shadow"),
        ("echo muster:password | chpasswd", "ssh_trust.account", "do: usermod --password '*' muster"),
        ("chown root /home/muster", "ssh_trust.account", "do: chown muster: /home/muster"),
        ("usermod --shell /bin/sh muster", "ssh_trust.account", "its shell is /bin/sh; do: muster setup"),
        (
            "printf 'Match User muster\\n  MaxSessions 5\\n' > /etc/ssh/sshd_config.d/05-site.conf",
            "ssh_trust.server",
            "maxsessions is 5, not 64",
        ),
        ("touch /etc/ssh/sshd_config.d/10-muster.before", "ssh_trust.finished", "muster setup was cut short"),
        (f"echo 'server 192.0.2.1' >> {CHRONY}", "time_sync.files", CHRONY),
        (
            "rm /etc/systemd/system/chrony.service.d/muster.conf",
            "time_sync.files",
            "chrony.service.d/muster.conf",
        ),
        ("systemctl disable chrony", "time_sync.service", '"enabled": false'),
        ("chmod 755 /var/lib/muster/leases", "leases.folder", "do: muster setup"),
        ("dpkg --purge --force-depends python3-mpi4py", "bare.packages", "python3-mpi4py; do: muster setup"),
    ),
    (
        (f"chmod 666 {KEYS}", "ssh_trust.files", KEYS),
        ("rm /etc/ssh/ssh_known_hosts", "ssh_trust.files", "/etc/ssh/ssh_known_hosts"),
        (f"rm {SSHD} && systemctl reload ssh", "ssh_trust.files", SSHD),
        ("true", "ssh_trust.driver", "a launch cannot log in as muster"),
        ("chmod 700 /etc/muster", "ssh_trust.files", "the mode of /etc/muster"),
        (f"rm {CHRONY}", "time_sync.files", CHRONY),
        ("systemctl stop chrony", "time_sync.service", '"active": false'),
        ("rm -r /var/lib/muster/leases", "leases.folder", "do: muster setup"),
    ),
)
# The remedies that verify names besides `muster setup`.
BY_HAND = (
    "rm -f /etc/sudoers.d/stranger /etc/ssh/sshd_config.d/05-site.conf;"
    " gpasswd --delete muster shadow || true; usermod --password '*' muster; chown muster: /home/muster"
)


def on(hosts: Hosts, script: str) -> None:
    done = run("docker", "exec", hosts.container(hosts.names[0]), "sh", "-ec", script)
    assert done.returncode == 0, script + done.stdout + done.stderr


@pytest.fixture(scope="module")
def one(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """A host that is set up."""
    hosts = Hosts(tmp_path_factory.mktemp("drift"), ["node4"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.start(*hosts.names)
    done = hosts.play("setup")
    assert done.status == 0, done.text
    return hosts


@pytest.mark.parametrize("drifts", ROUNDS, ids=["first", "second"])
def test_verify_finds_every_kind_of_drift_and_setup_repairs_it(
    one: Hosts, drifts: tuple[tuple[str, str, str], ...]
) -> None:
    for script, _, _ in drifts:
        on(one, script)
    done = one.play("verify")
    assert done.status == 2, done.text
    failed = {str(check["id"]): str(check["detail"]) for check in one.checks() if not check["ok"]}
    missed = [drift for drift in drifts if drift[2] not in failed.get(drift[1], "")]
    assert not missed, done.text
    on(one, BY_HAND)
    done = one.play("setup")
    assert done.status == 0, done.text
    done = one.play("verify")
    assert done.status == 0, done.text
