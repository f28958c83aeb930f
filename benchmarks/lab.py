"""Simulated hosts for benchmarks, and the cost of a command that asks them.

One container of an image with sshd, on an isolated network, has an address for each host and a user with its
own home. All hosts and the client share the cores of this machine, so wall time contains the
work of both ends, and client CPU is the figure that carries over to real hosts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAB = Path(sys.executable).parent / "fab"
NAME = "muster-scale"
SUBNET = "10.188"  # 10.88 is podman's own
# A home and an address for each host; sshd takes all logins at once, from one address.
SERVE = f"""
set -eu
mkdir -p /run/sshd /etc/bench && echo "$CLIENT_KEY" >/etc/bench/authorized_keys
ssh-keygen -q -t ed25519 -N '' -f /etc/bench/host_key
for number in $(seq "$HOSTS"); do
    name=$(printf 'h%03d' "$number")
    ip address add "{SUBNET}.$((1 + number / 250)).$((1 + number % 250))/16" dev eth0
    echo "$name:*:$((20000 + number)):100::/home/$name:/bin/sh" >>/etc/passwd
    install -d -o "$((20000 + number))" -g 100 -m 700 "/home/$name"
done
sshd="/usr/sbin/sshd -f /dev/null -h /etc/bench/host_key"
newer='-o PerSourcePenalties=no'  # OpenSSH 9.8 has it
$sshd -t $newer || newer=
exec $sshd -D -e $newer -o UsePAM=no -o PermitUserEnvironment=no \\
    -o AuthorizedKeysFile=/etc/bench/authorized_keys -o MaxStartups=2000 -o MaxSessions=1000 \\
    -o UseDNS=no -o LogLevel=ERROR -o Subsystem='sftp internal-sftp'
"""
CPU_USED = "cat /sys/fs/cgroup/cpuacct/cpuacct.usage || grep usage_usec /sys/fs/cgroup/cpu.stat"


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, of the client's processors, and of the hosts' processors."""

    wall: float
    client: float
    hosts: float


@dataclass(frozen=True)
class Lab:
    """Simulated hosts, and a folder from which `ssh -F .muster/ssh_config h001` reaches them."""

    folder: Path
    container: str
    names: tuple[str, ...]

    @property
    def ssh_config(self) -> Path:
        """The SSH configuration that all contestants use."""
        return self.folder / ".muster" / "ssh_config"

    def cpu(self) -> float:
        """Seconds of processor time that the hosts have used."""
        counters = docker("exec", self.container, "sh", "-c", CPU_USED, check=True).split()
        return int(counters[-1]) / (1e9 if len(counters) == 1 else 1e6)

    def only(self, count: int) -> None:
        """Limit the hosts files to the first `count` hosts."""
        (self.folder / "hosts.txt").write_text("".join(f"{name} slots=1\n" for name in self.names[:count]))
        (self.folder / "names.txt").write_text("\n".join(self.names[:count]))


def _as_users_have_it() -> dict[str, str]:
    """The environment of this process, but Python keeps what it has compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def docker(*words: str, check: bool = False) -> str:
    """What a docker command prints; with `check` a failure ends the benchmark."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"docker {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def lab(folder: Path, count: int, image: str) -> Iterator[Lab]:
    """Provide simulated hosts for the block."""
    place = folder / ".muster"
    place.mkdir()
    key = place / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    environment = ("-e", f"HOSTS={count}", "-e", f"CLIENT_KEY={Path(f'{key}.pub').read_text()}")
    _remove()
    docker("network", "create", "--internal", "--subnet", f"{SUBNET}.0.0/16", NAME, check=True)
    try:
        words = (
            "run",
            "--detach",
            "--name",
            NAME,
            "--network",
            NAME,
            "--cap-add",
            "NET_ADMIN",
            "--user",
            "root",
        )
        shell = ("--shm-size", "1g", "--no-healthcheck", "--entrypoint", "sh", image, "-c", SERVE)
        container = docker(*words, "--init", *environment, *shell, check=True)
        names = tuple(f"h{number:03d}" for number in range(1, count + 1))
        made = Lab(folder, container, names)
        _trust(made, key)
        yield made
    finally:
        _remove()


def _remove() -> None:
    docker("rm", "--force", "--volumes", NAME)
    docker("network", "rm", NAME)


def _trust(made: Lab, key: Path) -> None:
    """Wait for sshd, then write the SSH configuration with a pinned key for each host."""
    deadline = time.monotonic() + 60
    while not (host_key := docker("exec", made.container, "cat", "/etc/bench/host_key.pub")):
        if time.monotonic() > deadline:
            sys.exit(f"the simulated hosts do not start: {docker('logs', made.container)}")
        time.sleep(0.2)
    known = made.folder / ".muster" / "known_hosts"
    lines = [f"IdentityFile {key}", "IdentitiesOnly yes", f"UserKnownHostsFile {known}", "BatchMode yes"]
    lines += ["GlobalKnownHostsFile none", "StrictHostKeyChecking yes", "LogLevel ERROR"]
    hosts = []
    for number, name in enumerate(made.names, start=1):
        address = f"{SUBNET}.{1 + number // 250}.{1 + number % 250}"
        hosts.append(f"{address} {' '.join(host_key.split()[:2])}\n")
        lines += [f"Host {name}", f"    HostName {address}", f"    User {name}"]
    known.write_text("".join(hosts))
    made.ssh_config.write_text("\n".join(lines) + "\n")
    made.ssh_config.chmod(0o600)
    last = ["ssh", "-F", str(made.ssh_config), made.names[-1], "true"]
    while subprocess.run(last, stderr=subprocess.DEVNULL, check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit("the last of the simulated hosts cannot be reached")
        time.sleep(0.2)


def measure(words: Sequence[str], made: Lab) -> Cost:
    """Run one command to its end, and measure its cost; a failure ends the benchmark."""
    used, began = made.cpu(), time.perf_counter()
    log = made.folder / "said"
    with log.open("w") as out:
        process = subprocess.Popen(
            words, cwd=made.folder, env=_as_users_have_it(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if status:
        sys.exit(f"{words[0]} ended with {os.waitstatus_to_exitcode(status)}:\n{log.read_text()[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, made.cpu() - used)
