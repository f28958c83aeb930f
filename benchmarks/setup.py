"""The cost of setup.yml on hosts that are set up already: wall and client CPU, and the tasks that dominate.

    .venv/bin/python benchmarks/setup.py --hosts 3 16 64 --rounds 5

The hosts are containers with systemd on this machine, copies of one container that was set up
(tests/ansible/node). Wall time therefore contains the hosts' own work; client CPU does not. Every round opens
new connections. Each systemd holds at least three inotify instances, and the kernel's default allows root
128: beyond about 30 hosts, set sysctl fs.inotify.max_user_instances=1024.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.ansible.bare_hosts import BOOKS, Hosts, run  # noqa: E402  # the same hosts as the tests'

PROJECT = "muster-bare-bench"
COPY = f"{PROJECT}:copy"
BOOT = ("--tmpfs=/run", "--tmpfs=/run/lock", "--tmpfs=/tmp:exec", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:ro")
FORGET = "rm -f /etc/ssh/ssh_host_* /var/lib/chrony/*; rm -rf /etc/muster"
# Units that hold inotify instances and are not needed here.
MASK = "systemctl mask user@.service systemd-ask-password-console.path systemd-ask-password-wall.path"


@dataclass(frozen=True)
class Round:
    """One run of setup.yml: its seconds, and the microseconds of each task."""

    wall: float
    cpu: float
    tasks: Counter[str] = field(default_factory=Counter)


class Copies(Hosts):
    """Many copies of a host."""

    def boot(self, image: str, *names: str) -> None:
        """Start containers at once, and pin their host keys."""
        public = self.folder / "operator.pub"
        for name in names:
            command = ["docker", "run", "--detach", f"--name={PROJECT}-{name}", f"--hostname={name}", *BOOT]
            command += [f"--network={PROJECT}", f"--volume={public}:/root/.ssh/authorized_keys:ro", image]
            docker(*command[1:])
        for name in names:
            container, key = f"{PROJECT}-{name}", ""
            while not key:
                if docker("inspect", "--format", "{{.State.Running}}", container) == "false\n":
                    sys.exit(f"{container} ended at once; too few inotify instances?")
                key = run("docker", "exec", container, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
            networks = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
            self.pin(name, docker("inspect", "--format", networks, container).strip(), key)

    def timed(self, *args: str) -> Round:
        """Play setup.yml over new connections, and note when each task is announced."""
        before, began = os.times(), time.perf_counter()
        last, tasks = (began, "start"), Counter[str]()
        with tempfile.TemporaryDirectory() as sockets:
            ansible = subprocess.Popen(
                self.command("setup", *args),
                cwd=BOOKS,
                env=self.env | {"ANSIBLE_SSH_CONTROL_PATH_DIR": sockets},
                stdout=subprocess.PIPE,
                text=True,
            )
            assert ansible.stdout is not None  # noqa: S101  # stdout=PIPE
            text = ""
            for line in ansible.stdout:
                text += line
                if match := re.match(r"(?:TASK|PLAY|RUNNING HANDLER) \[?(.*?)\]? \*", line):
                    now = time.perf_counter()
                    tasks[last[1]] += int(1e6 * (now - last[0]))
                    last = (now, match.group(1))
            if ansible.wait():
                sys.exit(text)
        after, wall = os.times(), time.perf_counter() - began
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Round(wall, cpu, tasks)


def docker(*args: str) -> str:
    """Return what a docker command prints; a failure ends the benchmark."""
    done = run("docker", *args, timeout=120)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def remove() -> None:
    """Remove all containers, the network and the image of the benchmark."""
    names = docker("ps", "--all", "--quiet", "--filter", f"name={PROJECT}-").split()
    if names:
        docker("rm", "--force", *names)
    run("docker", "network", "rm", PROJECT)
    run("docker", "image", "rm", COPY)


def copies(folder: Path, count: int, image: str) -> Copies:
    """Return hosts from one image, with their own folder."""
    folder.mkdir()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "operator"))
    hosts = Copies(folder, [f"h{number:02}" for number in range(1, count + 1)])
    hosts.variables |= {"time_sync_mode": "isolated", "time_sync_wait_seconds": 60}
    hosts.boot(image, *hosts.names)
    return hosts


def measure(folder: Path, count: int, rounds: int) -> list[Round]:
    """Measure rounds over copies; the first setup, which makes them a cluster, is not counted."""
    hosts = copies(folder / f"n{count}", count, COPY)
    hosts.timed()
    taken = [hosts.timed() for _ in range(rounds)]
    docker("rm", "--force", *(f"{PROJECT}-{name}" for name in hosts.names))
    return taken


def report(count: int, rounds: list[Round]) -> str:
    """Return a row of the table: medians, and the tasks that take most of the wall time."""
    wall, cpu = (statistics.median(getattr(timing, name) for timing in rounds) for name in ("wall", "cpu"))
    spread = f"{min(timing.wall for timing in rounds):.1f}-{max(timing.wall for timing in rounds):.1f}"
    tasks = sum((timing.tasks for timing in rounds), Counter[str]())
    most = ", ".join(f"{name} {100 * share / tasks.total():.0f} %" for name, share in tasks.most_common(4))
    return f"| {count} | {wall:.1f} ({spread}) | {cpu:.1f} | {cpu / count:.2f} | {most} |"


def main() -> None:
    """Set up one host, copy it, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[3, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--image", default="muster-bare:trixie", help="of tests/ansible/node")
    options = parser.parse_args()
    remove()
    docker("network", "create", PROJECT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            copies(Path(folder) / "first", 1, options.image).timed()
            docker("exec", f"{PROJECT}-h01", "sh", "-c", f"{FORGET}; {MASK}")
            docker("commit", f"{PROJECT}-h01", COPY)
            docker("rm", "--force", f"{PROJECT}-h01")
            machine = f"{platform.machine()}, {os.cpu_count()} cores"
            sys.stdout.write(f"{machine}, {options.rounds} rounds, medians (minimum-maximum)\n\n")
            sys.stdout.write(
                "| hosts | wall, s | client CPU, s | a host | what takes the time |\n|---|---|---|---|---|\n"
            )
            for count in options.hosts:
                sys.stdout.write(report(count, measure(Path(folder), count, options.rounds)) + "\n")
                sys.stdout.flush()
    finally:
        remove()


if __name__ == "__main__":
    main()
