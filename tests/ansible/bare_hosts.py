"""Bare hosts as containers with systemd, and Ansible run on them as an operator runs it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.load import SOAK
from tests.parallel import NUMBER
from tests.processes import kill_all
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BOOKS = ROOT / "ansible"
COMPOSE = Path(__file__).parent / "node" / "compose.yaml"
PROJECT = f"muster-bare-test{NUMBER or ''}"
NETWORK = f"10.77.{NUMBER}"
ROOTFS = os.environ.get("BARE_ROOTFS", "")
"""A folder with the root file system of another system, which the hosts are made from."""


def codename(rootfs: Path) -> str:
    """The code name of the release in a root file system, `noble`: os-release(5)."""
    (name,) = re.findall(r"^VERSION_CODENAME=(\w+)$", (rootfs / "etc/os-release").read_text(), re.MULTILINE)
    return str(name)


RELEASE = codename(Path(ROOTFS)) if ROOTFS else os.environ.get("BARE_RELEASE", "trixie")
HAS_TORCH = RELEASE == "trixie" and not ROOTFS  # of the images that the hosts are made from
ADDRESSES = {f"node{number}": f"{NETWORK}.{10 + number}" for number in range(1, 10)}
ADDRESSES["clock"] = f"{NETWORK}.20"
STARTED = {"running", "degraded"}  # systemctl(1)
BOOT_SECONDS = 1000.0  # for a machine on which four start at once, beside other work
PATIENCE = 1000.0  # seconds for a command, against what hangs

# Programs of the environment that the tests run in: no one need have activated it.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

# group_vars/cluster.yml beside hosts.txt. The site's clock is a container.
VARIABLES: dict[str, object] = {
    "muster_stack": "bare",
    "time_sync_servers": [ADDRESSES["clock"]],
    "time_sync_pools": [],
    "ssh_trust_login_seconds": 8
    if SOAK
    else 30,  # a rotation waits for as long; on a busy machine logins are slow
    "ssh_trust_undo_seconds": 900,  # until then even a busy machine has tried sshd's new settings
    "preflight_disk_free_mb": 500,
    "packages_index_seconds": 10**9,  # the list of packages in the image is that of the packages in its cache
}
if not HAS_TORCH:
    VARIABLES["bare_packages"] = ["python3", "openmpi-bin", "python3-mpi4py"]
# An sshd that lets the operator in no more.
LOCKED_OUT: dict[str, Any] = {
    "hardening_enabled": True,
    "hardening_allow_users": ["nobody"],
    "hardening_may_lock_out": ["op", "root"],
}


@dataclass(frozen=True)
class Outcome:
    """A playbook's run."""

    status: int
    text: str
    cpu_seconds: float
    recap: Mapping[str, Mapping[str, int]]

    @property
    def changed(self) -> int:
        return sum(host["changed"] for host in self.recap.values())

    def changes(self, host: str) -> list[str]:
        """The tasks and handlers that changed something on a host, in their order."""
        parts = re.split(r"^(?:TASK|RUNNING HANDLER) \[(.*?)\] \**$", self.text, flags=re.MULTILINE)
        named = zip(parts[1::2], parts[2::2], strict=True)
        return [name for name, said in named if re.search(rf"^changed: \[{host}\]", said, re.MULTILINE)]


def run(
    *argv: str,
    timeout: float = PATIENCE,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )


def _as_typed(name: str, value: object) -> str:
    """A variable as users write it, which gives Ansible a text: name=true. Lists and others as JSON."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    return f"{name}={value}" if isinstance(value, int) else json.dumps({name: value})


@dataclass
class Hosts:
    """Bare hosts, this machine's folder for them, and the operator's own way in."""

    folder: Path
    names: list[str] = field(default_factory=lambda: ["node1", "node2", "node3"])
    variables: dict[str, object] = field(default_factory=VARIABLES.copy)
    release: str = RELEASE

    @property
    def base(self) -> str:
        """The image that the hosts are made from."""
        if ROOTFS and self.release == RELEASE:
            return f"muster-bare-rootfs:{RELEASE}"
        return "muster-bare-stack" if self.release == "trixie" else f"debian:{self.release}-slim"

    @property
    def hosts_file(self) -> Path:
        return self.folder / "hosts.txt"

    @property
    def muster(self) -> Path:
        return self.folder / ".muster"

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {
            "PATH": PATH,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_TIMEOUT": "90",  # of a connection: all hosts have one machine, however busy it is
            "ANSIBLE_SSH_COMMON_ARGS": f"-F {self.folder}/operator_config",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "BARE_NETWORK": NETWORK,
            "BARE_BASE": self.base,
            "BARE_RELEASE": self.release,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "OPERATOR_KEY": (self.folder / "operator.pub").read_text(),
        }

    def compose(self, *args: str, timeout: float = PATIENCE) -> None:
        done = run("docker", "compose", "--file", str(COMPOSE), *args, timeout=timeout, env=self.env)
        assert done.returncode == 0, done.stderr

    def start(self, *names: str, login: str = "root") -> None:
        """Bring hosts up again, and pin their host keys as one reads them off a console."""
        self.compose("up", "--detach", "--no-deps", "--force-recreate", "--timeout", "0", *names)
        for name in names:
            self.await_start(name)
            key = self.on(name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
            self.pin(name, ADDRESSES[name], key, login)
            wait_until(partial(self.is_in, name), f"a login at {name}", patience=BOOT_SECONDS)

    def await_start(self, name: str) -> None:
        """Until systemd has started all that a host has: what comes later would be a trace of ours."""

        def has_started() -> bool:
            return self.on(name, "systemctl", "is-system-running", "--wait").strip() in STARTED

        wait_until(has_started, f"the start of {name}", patience=BOOT_SECONDS)

    def is_in(self, name: str) -> bool:
        """Whether the operator can log in."""
        return self.operator(name, "echo in").stdout == "in\n"

    def pin(self, name: str, address: str, key: str, login: str = "root") -> None:
        """Let the operator know a host."""
        with (self.folder / "operator_known_hosts").open("a") as known_hosts:
            known_hosts.write(f"{address} {key.strip()}\n")
        with (self.folder / "operator_config").open("a") as config:
            config.write(
                f"Host {name}\n  HostName {address}\n  User {login}\n"
                f"  IdentityFile {self.folder}/operator\n"
                f"  UserKnownHostsFile {self.folder}/operator_known_hosts\n  StrictHostKeyChecking yes\n"
            )

    def on(self, name: str, *argv: str) -> str:
        """What a command prints on a host, without SSH; empty where it fails."""
        return run("docker", "exec", self.container(name), *argv).stdout

    def container(self, name: str) -> str:
        return f"{PROJECT}-{name}-1"

    def operator(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        """The operator's own login; at the moment of a reload no sshd listens, so it knocks again."""
        options = ("-F", str(self.folder / "operator_config"), "-o", "BatchMode=yes")
        return run("ssh", *options, "-o", "ConnectionAttempts=5", name, command)

    def driver(self, name: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """A login as the driver's."""
        return run("ssh", "-F", str(self.muster / "ssh_config"), *options, name, command)

    def command(self, book: str, *args: str, **variables: object) -> list[str]:
        """The command line that plays a book on these hosts."""
        self.hosts_file.write_text("".join(f"{name} slots=2\n" for name in self.names))
        choices = self.variables | {"ssh_trust_operator_config": f"{self.folder}/operator_config"}
        (self.folder / "group_vars").mkdir(exist_ok=True)
        (self.folder / "group_vars" / "cluster.yml").write_text(json.dumps(choices))  # JSON is YAML
        return [
            *("ansible-playbook", f"{book}.yml", *args, "--inventory", str(self.hosts_file)),
            *(word for pair in variables.items() for word in ("--extra-vars", _as_typed(*pair))),
        ]

    def play(self, book: str, *args: str, timeout: float = 3 * PATIENCE, **variables: object) -> Outcome:
        """Play a book to its end."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(*self.command(book, *args, **variables), timeout=timeout, cwd=BOOKS, env=self.env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        output = done.stdout + done.stderr
        assert "[WARNING]: The loop variable" not in output, output  # a role's loop hides that of its caller
        cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Outcome(done.returncode, output, cpu_seconds, recap(done.stdout))

    def play_until(self, marker: str, book: str, *args: str, **variables: object) -> None:
        """Play a book, and kill Ansible with all that it started here as soon as it announces a task."""
        with subprocess.Popen(
            self.command(book, *args, **variables),
            cwd=BOOKS,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as ansible:
            assert ansible.stdout
            try:
                found = any(marker in line for line in ansible.stdout)
            finally:
                kill_all(ansible.pid)
        assert found, f"no task {marker!r}"

    def checks(self) -> list[dict[str, object]]:
        """What verify.yml found, as it says in JSON."""
        report = json.loads((self.muster / "verify.json").read_text())
        assert report["ok"] is all(check["ok"] for check in report["checks"])
        return list(report["checks"])

    def traces(self, name: str) -> set[str]:
        """Files with mode and content, packages, groups, units, firewall: what teardown restores."""
        return set(self.on(name, "sh", "-c", LISTING).splitlines())


# Not logs, caches, nor the second copies that package and account tools keep of their own files; not the
# group `rdma`, which Debian's rdma-core leaves when it is purged, as its policy has it; nor units that a host
# starts only at its first boot (ConditionNeedsUpdate, ConditionFirstBoot). A
# systemd that is too busy to answer is asked again.
LISTING = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
  -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/ucf -o -path '/etc/*-' \
  -o -path '/var/lib/dpkg/*-old' -o -path '/var/lib/systemd/*' -o -name .ansible -o -name __pycache__ \) \
  -prune \
  -o -printf '%p %y %m %u:%g %l\n'
find /etc /home /root /usr/local -xdev -type f ! -path '/etc/*-' ! -path /etc/group ! -path /etc/gshadow \
  ! -path '*/.ansible/*' -exec sha256sum {} +
listed() { until found=$(systemctl "$@" --no-legend --no-pager); do sleep 1; done; echo "$found"; }
listed list-unit-files | grep -v ' transient ' | sed -E 's/ +/ /g; s/^/unit /'
listed list-units --plain --type=service,socket,timer --state=active \
  | awk '{print "active", $1}' | grep -vE 'user@|user-runtime-dir@|systemd-(hostnamed|timedated|localed)' \
  | grep -vE '(ldconfig|sshd-keygen|systemd-(firstboot|.*-update|sysusers|update-done))[.]'
{ nft list ruleset || iptables-save; } 2>/dev/null | grep -v '^#' \
  | sed -E 's/counter packets [0-9]+ bytes [0-9]+/counter/; s/ \[[0-9]+:[0-9]+\]$//; s/^/firewall /'
cut -d: -f1,4 /etc/group | grep -v '^rdma:' | sed 's/^/group /'
dpkg --get-selections
"""


def recap(text: str) -> dict[str, dict[str, int]]:
    lines = re.findall(r"^(\S+)\s+: (ok=.*)$", text, re.MULTILINE)
    return {
        name: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", rest)} for name, rest in lines
    }
