"""`muster setup`, `verify`, `rotate-keys`, `teardown`: run the playbooks of Muster on a hosts file."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import ClassVar

from ..connect.opener import config_beside
from ..console.progress import Progress
from ..errors import UsageError
from ..hosts import hostfile
from ..roster.sources import ansible_program, require_own_variables
from .command import Command, flag
from .shared import HOSTS, HOSTS_ALSO, MUSTER, hosts_file_of

ANSIBLE = MUSTER / "ansible"


@dataclass(frozen=True)
class PlaybookOptions(Command):
    """A command that runs the playbook of its name. ansible-playbook replaces this process."""

    book: ClassVar[str]

    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)
    ansible: str = flag(
        "",
        "more options for ansible-playbook, as after --",
        "ANSIBLE-PLAYBOOK'S OPTIONS",
        takes="rest",
        blank="no more options",
    )
    dry_run: bool = flag(False, "print the command, and run nothing")

    def run(self) -> None:
        """Check the hosts file, and start ansible-playbook."""
        hosts_file = hosts_file_of(self.hosts)
        hostfile.load(hosts_file)  # report mistakes in it before Ansible does
        require_own_variables(hosts_file)
        config_beside(hosts_file)  # the playbooks log in with it
        try:
            options = shlex.split(self.ansible)
        except ValueError as error:
            raise UsageError(f"--ansible {self.ansible!r}: {error}; quote it as in a shell") from None
        config = ANSIBLE / "ansible.cfg"
        argv = [
            "ansible-playbook",
            str(ANSIBLE / f"{self.book}.yml"),
            "--inventory",
            str(hosts_file),
            *options,
        ]
        sys.stdout.write(f"ANSIBLE_CONFIG={shlex.quote(str(config))} {shlex.join(argv)}\n")
        sys.stdout.flush()
        Progress.close_all()
        if not self.dry_run:
            path = ansible_program(argv[0], "runs playbooks")
            os.execve(path, argv, {**os.environ, "ANSIBLE_CONFIG": str(config)})  # noqa: S606


@dataclass(frozen=True)
class Setup(PlaybookOptions):
    """Make a cluster of bare hosts: SSH trust, clocks, limits, training stack.

    It is safe to run again, also after a change of hosts.txt. A dry run: muster setup -- --check --diff
    """

    book = "setup"


@dataclass(frozen=True)
class Verify(PlaybookOptions):
    """Check whether the hosts are still as setup made them.

    The result is also in .muster/verify.json.
    """

    book = "verify"


@dataclass(frozen=True)
class RotateKeys(PlaybookOptions):
    """Give the cluster a new SSH key; no login fails meanwhile."""

    book = "rotate-keys"


@dataclass(frozen=True)
class Teardown(PlaybookOptions):
    """Bring the hosts back to how they were before setup."""

    book = "teardown"
