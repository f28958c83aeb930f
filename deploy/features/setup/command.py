"""The commands that run the playbooks of Muster on a hosts file, such as `muster setup`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...cli.command import Command
from ...cli.shared import HOSTS, HOSTS_ALSO, MUSTER, hosts_file_of
from ...core.connect.opener import config_beside
from ...core.connect.ownership import require_own, within
from ...core.errors import UsageError
from ...core.hosts import hostfile
from ...core.hosts.hostfile import Host, InvalidValue, all_names
from ...core.plan.flags import flag
from ...core.text.progress import Progress
from ...core.text.text import clip
from . import record as setup_record

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

    def playbook(self, hosts_file: Path) -> tuple[str, Sequence[str]]:
        """The playbook, and its options of this command."""
        return self.book, ()

    def run(self) -> None:
        """Check the hosts file, and start ansible-playbook."""
        hosts_file = hosts_file_of(self.hosts)
        hostfile.load(hosts_file)  # report mistakes in it before Ansible does
        _require_own_variables(hosts_file.parent)
        config_beside(hosts_file)  # the playbooks log in with it
        try:
            options = shlex.split(self.ansible)
        except ValueError as error:
            raise UsageError(f"--ansible {self.ansible!r}: {error}; quote it as in a shell") from None
        config = ANSIBLE / "ansible.cfg"
        book, own = self.playbook(hosts_file)
        argv = [
            "ansible-playbook",
            str(ANSIBLE / f"{book}.yml"),
            "--inventory",
            str(hosts_file),
            *own,
            *options,
        ]
        sys.stdout.write(f"ANSIBLE_CONFIG={shlex.quote(str(config))} {shlex.join(argv)}\n")
        sys.stdout.flush()
        Progress.close_all()
        if not self.dry_run:
            path = _ansible_playbook()
            os.execve(path, argv, {**os.environ, "ANSIBLE_CONFIG": str(config)})  # noqa: S606


@dataclass(frozen=True)
class Setup(PlaybookOptions):
    """Make a cluster of bare hosts: SSH trust, clocks, limits, training stack.

    It is safe to run again, also after a change of hosts.txt. A dry run: muster setup -- --check --diff
    """

    book = "setup"

    limit: str = flag("", "only these hosts, and all that are set up: node[7-9]", "HOSTS")
    remove: str = flag("", "undo setup on hosts that are no longer in the hosts file", "HOSTS")

    def playbook(self, hosts_file: Path) -> tuple[str, Sequence[str]]:
        """Setup of all hosts or of a few, or the teardown of those that left."""
        if self.limit and self.remove:
            raise UsageError(
                "--limit is for hosts in the hosts file, --remove for others; run them one by one"
            )
        if self.limit:
            return self.book, limit(hostfile.load(hosts_file), self.limit, hosts_file.parent / ".muster")
        if not self.remove:
            return self.book, ()
        # They are in no group of the hosts file, so its variables would not be theirs.
        names = leaving(hosts_file, self.remove)
        variables = hosts_file.parent / "group_vars" / "cluster.yml"
        of_cluster = ("--extra-vars", f"@{variables}") if variables.is_file() else ()
        return "teardown", (*of_cluster, "--extra-vars", f"teardown_hosts={','.join(names)}")


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
class Wheelhouse(PlaybookOptions):
    """Fill a folder here with the wheels of the stack venv, for hosts without an index.

    Then: muster setup -- -e muster_stack=venv -e venv_wheelhouse=FOLDER
    """

    book = "wheelhouse"

    folder: str = flag("", "the folder to fill", "FOLDER", takes="positional", required="Which folder?")

    def playbook(self, hosts_file: Path) -> tuple[str, Sequence[str]]:
        return self.book, ("--extra-vars", json.dumps({"venv_wheelhouse": str(Path(self.folder).absolute())}))


@dataclass(frozen=True)
class Venv(PlaybookOptions):
    """Make the Python environment of the stack venv alone, by a login without root.

    Jobs run as that login. Run it again to change the environment.
    """

    book = "venv"

    remove: bool = flag(False, "remove the environment again")

    def playbook(self, hosts_file: Path) -> tuple[str, Sequence[str]]:
        """The playbook, to make or to remove the environment."""
        return self.book, ("--extra-vars", "venv_state=absent") if self.remove else ()


@dataclass(frozen=True)
class Teardown(PlaybookOptions):
    """Bring the hosts back to how they were before setup."""

    book = "teardown"


def _require_own_variables(folder: Path) -> None:
    """`UsageError` if another user may have written the variables beside a hosts file."""
    files = (path for name in ("group_vars", "host_vars") for path in within(folder / name))
    require_own(files, "Ansible's lookups run commands here")


def _ansible_playbook() -> str:
    """The program beside this Python, else on PATH: a virtual environment need not be active."""
    name = "ansible-playbook"
    path = shutil.which(str(Path(sys.executable).parent / name)) or shutil.which(name)
    if not path:
        raise UsageError(
            f"no {name} here, which runs playbooks; pip install 'ansible-core>=2.19' "
            "(with Python 3.11 or newer)"
        )
    return path


def limit(hosts: Sequence[Host], names: str, folder: Path) -> tuple[str, ...]:
    """Ansible's options for hosts that are added: these, and the hosts that have to know their host keys.

    Those are the hosts that `folder` records as set up, and the first host, whose clock the others compare
    theirs with. The playbook leaves those out that it cannot reach.
    """
    chosen = hostfile.named(names, hosts, "--limit")
    known = {name for name, host in setup_record.load(folder).items() if not host.get("left_out")}
    wanted = chosen | known | ({hosts[0].name} if known else set())
    added = json.dumps({"muster_added": sorted(chosen)})
    return "--limit", ",".join(host.name for host in hosts if host.name in wanted), "--extra-vars", added


def leaving(hosts_file: Path, names: str) -> tuple[str, ...]:
    """The names of hosts to clean, which are no longer in the hosts file."""
    try:
        wanted = tuple(sorted(all_names(names)))
    except InvalidValue as invalid:
        raise UsageError(f"--remove {clip(names)}: {invalid}") from None
    if still := sorted({*wanted} & {host.name for host in hostfile.load(hosts_file)}):
        raise UsageError(
            f"--remove: {', '.join(still)} still in {hosts_file}; take the line out of it first, or, to undo "
            f"setup there and keep the line: muster teardown -- --limit {','.join(still)}"
        )
    hostfile.parse("\n".join(wanted), "--remove")  # Ansible takes other characters for a pattern
    return wanted
