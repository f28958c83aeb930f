"""`muster setup`, `verify`, `rotate-keys`, `teardown`: run the playbooks of Muster on a hosts file."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from ..connect.opener import config_beside
from ..errors import UsageError
from ..hosts import hostfile
from ..roster.inventory import require_own_variables
from .command import Values, command
from .shared import HELP, explained
from .shipped import ANSIBLE

_OPTIONS = {
    "help": {
        "hosts": HELP["hosts"],
        "ansible": "more options for ansible-playbook, like the words after --",
        "dry-run": "print the command, and run nothing",
    },
    "values": {"ansible": Values(blank="no more options")},
    "rest": "ansible",
    "rest_name": "ANSIBLE-PLAYBOOK'S OPTIONS",
}


@command(**_OPTIONS)
def setup(hosts: str = "hosts.txt", ansible: str = "", dry_run: bool = False) -> None:
    """Make a cluster of bare hosts: SSH trust, clocks, limits, the training stack.

    It is safe to run again, also after a change of hosts.txt. A dry run: muster setup -- --check --diff
    """
    _play("setup", hosts, ansible, dry_run=dry_run)


@command(**_OPTIONS)
def verify(hosts: str = "hosts.txt", ansible: str = "", dry_run: bool = False) -> None:
    """Check whether the hosts are still as setup made them. The result is also in .muster/verify.json."""
    _play("verify", hosts, ansible, dry_run=dry_run)


@command(**_OPTIONS)
def rotate_keys(hosts: str = "hosts.txt", ansible: str = "", dry_run: bool = False) -> None:
    """Give the cluster a new SSH key; no login fails meanwhile."""
    _play("rotate-keys", hosts, ansible, dry_run=dry_run)


@command(**_OPTIONS)
def teardown(hosts: str = "hosts.txt", ansible: str = "", dry_run: bool = False) -> None:
    """Bring the hosts back to how they were before setup."""
    _play("teardown", hosts, ansible, dry_run=dry_run)


def _play(book: str, hosts: str, more: str, *, dry_run: bool) -> None:
    """Replace this process by ansible-playbook, whose exit status is then that of the command."""
    with explained():
        hostfile.load(Path(hosts))  # so that mistakes in it are reported by us, not by Ansible
        require_own_variables(Path(hosts))
        config_beside(Path(hosts))  # the playbooks log in with it
        try:
            words = shlex.split(more)
        except ValueError as error:
            raise UsageError(f"--ansible {more!r}: {error}; quote it as in a shell") from None
        config = ANSIBLE / "ansible.cfg"
        argv = ["ansible-playbook", str(ANSIBLE / f"{book}.yml"), "--inventory", hosts, *words]
        sys.stdout.write(f"ANSIBLE_CONFIG={shlex.quote(str(config))} {shlex.join(argv)}\n")
        sys.stdout.flush()
        if not dry_run:
            os.execve(_ansible(), argv, {**os.environ, "ANSIBLE_CONFIG": str(config)})  # noqa: S606


def _ansible() -> str:
    """The ansible-playbook beside this Python, else of PATH: a virtual environment need not be active."""
    beside = Path(sys.executable).parent
    path = shutil.which(str(beside / "ansible-playbook")) or shutil.which("ansible-playbook")
    if not path:
        raise UsageError(
            "no ansible-playbook here; pip install 'ansible-core>=2.19' (with Python 3.11 or newer)"
        )
    return path
