"""What it costs to ask many hosts, and to bring code there: Muster, pdsh, clush, Fabric's ThreadingGroup.

    .venv/bin/python benchmarks/scale.py --sizes 3 64 256 --rounds 3

The hosts are simulated: one container of the node image, on a network that leads nowhere else, whose sshd has
an address for each host and a user with its own home. All hosts and the client share the cores of this
machine, so wall time contains the work of both ends, and client CPU is the figure that carries over to real
hosts. The contestants run in turn (A B C A B C ...) in one run; figures are medians. Each makes new
connections, with the same keys and configuration.
pdsh and clush are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

FAB = Path(sys.executable).parent / "fab"
NAME = "muster-scale"
SUBNET = "10.188"  # 10.88 is podman's own
AT_ONCE = "64"
# Commands that show some of what `fab check` reports.
QUESTIONS = "hostname; nproc; ulimit -n; df -k . /dev/shm; date +%s.%N; python3 -V; mpirun --version"
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
GROUP = """
import io, sys
from fabric import Config, ThreadingGroup
config = Config(runtime_ssh_path=sys.argv[1], overrides={"load_ssh_configs": True})
group = ThreadingGroup(*open(sys.argv[2]).read().split(), config=config)
if len(sys.argv) > 3:
    group.put(sys.argv[3], "code.tar.gz")
    group.run("mkdir -p code && tar -xzf code.tar.gz -C code", hide=True)
else:
    group.run("true", hide=True)
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
        counters = _docker("exec", self.container, "sh", "-c", CPU_USED, check=True).split()
        return int(counters[-1]) / (1e9 if len(counters) == 1 else 1e6)

    def only(self, count: int) -> None:
        """Limit the hosts files to the first `count` hosts."""
        (self.folder / "hosts.txt").write_text("".join(f"{name} slots=1\n" for name in self.names[:count]))
        (self.folder / "names.txt").write_text("\n".join(self.names[:count]))


def _as_users_have_it() -> dict[str, str]:
    """The environment of this process, but Python keeps what it has compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _docker(*words: str, check: bool = False) -> str:
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
    _docker("network", "create", "--internal", "--subnet", f"{SUBNET}.0.0/16", NAME, check=True)
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
        container = _docker(*words, "--init", *environment, *shell, check=True)
        names = tuple(f"h{number:03d}" for number in range(1, count + 1))
        made = Lab(folder, container, names)
        _trust(made, key)
        yield made
    finally:
        _remove()


def _remove() -> None:
    _docker("rm", "--force", "--volumes", NAME)
    _docker("network", "rm", NAME)


def _trust(made: Lab, key: Path) -> None:
    """Wait for sshd, then write the SSH configuration with a pinned key for each host."""
    deadline = time.monotonic() + 60
    while not (host_key := _docker("exec", made.container, "cat", "/etc/bench/host_key.pub")):
        if time.monotonic() > deadline:
            sys.exit(f"the simulated hosts do not start: {_docker('logs', made.container)}")
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
    last = ["ssh", "-F", str(made.ssh_config), made.names[-1], "true"]
    while subprocess.run(last, stderr=subprocess.DEVNULL, check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit("the last of the simulated hosts cannot be reached")
        time.sleep(0.2)


def contestants(made: Lab, count: int) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the commands of each task, by contestant."""
    config, hosts = str(made.ssh_config), ",".join(made.names[:count])
    pdsh = ("env", f"PDSH_SSH_ARGS=-F {config} %h", "pdsh", "-S", "-R", "ssh", "-f", AT_ONCE, "-w", hosts)
    scp = (
        "pdsh",
        "-S",
        "-R",
        "exec",
        "-f",
        AT_ONCE,
        "-w",
        hosts,
        "scp",
        "-F",
        config,
        "-q",
        "-r",
        "code",
        "%h:",
    )
    clush = ("clush", "-S", "-q", "-f", AT_ONCE, "-o", f"-F {config}", "-w", hosts)
    group = (sys.executable, "-c", GROUP, config, "names.txt")
    tasks = {
        "`true` on every host": {
            "pdsh": (*pdsh, "true"),
            "clush": (*clush, "true"),
            "Fabric ThreadingGroup": group,
            "fab run": (str(FAB), "run", "--", "true"),
        },
        "how every host is": {
            "pdsh, seven commands": (*pdsh, QUESTIONS),
            "clush, seven commands": (*clush, QUESTIONS),
            "fab check": (str(FAB), "check"),
        },
        "code to every host": {
            "pdsh with scp -r": scp,
            "clush --copy": (*clush, "--copy", "code", "--dest", "."),
            "Fabric ThreadingGroup": (*group, "code.tar.gz"),
            "fab launch, until its start": (sys.executable, __file__, "--deliver"),
        },
    }
    tools = {"pdsh": "pdsh", "clush": "clush"}
    return {
        task: {
            who: words
            for who, words in rows.items()
            if (tool := tools.get(who.split(",")[0].split()[0])) is None or shutil.which(tool)
        }
        for task, rows in tasks.items()
    }


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


def fresh(made: Lab, code: Path) -> None:
    """Remove what an earlier round delivered, and change the code, so that every round delivers all of it."""
    _docker("exec", made.container, "sh", "-c", "rm -rf /home/h*/code* /home/h*/.muster", check=True)
    shutil.rmtree(made.folder / "code", ignore_errors=True)
    shutil.copytree(code, made.folder / "code")
    subprocess.run(["tar", "-czf", "code.tar.gz", "-C", "code", "."], cwd=made.folder, check=True)


def deliver_here() -> None:
    """Deliver the folder `code` to every host as a launch does, and exit."""
    from muster.deploy.cli import options as request  # noqa: PLC0415  # only this process needs them
    from muster.deploy.connect.cluster import Cluster  # noqa: PLC0415
    from muster.deploy.connect.opener import opener  # noqa: PLC0415
    from muster.deploy.hosts import hostfile  # noqa: PLC0415  # only this process needs them
    from muster.deploy.jobs.programs import tools  # noqa: PLC0415
    from muster.deploy.launch.deliver import deliver  # noqa: PLC0415
    from muster.deploy.plan.planner import plan  # noqa: PLC0415
    from muster.deploy.plan.source_tree import Tree, scan  # noqa: PLC0415
    from muster.deploy.plan.spec import LaunchSpec  # noqa: PLC0415

    code = Path("code").resolve()
    tree = scan(code)
    spec = LaunchSpec(
        job=request.new_job(),
        program=request.program(tree, code, script=tree.files[0].path, module="", args=""),
    )
    hosts_file = Path("hosts.txt")
    with Cluster(hostfile.load(hosts_file), opener(hosts_file, "")) as cluster:
        empty = Tree(code, ".", ())
        deliver(plan(spec, cluster.hosts, cluster.survey(), tree, empty, tools=tools()), cluster)


def report(costs: Mapping[int, Mapping[str, Mapping[str, Sequence[Cost]]]], rounds: int) -> str:
    """Return a table for each task: medians of wall, client and host CPU time, by number of hosts."""
    sizes = list(costs)
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores for client and hosts together, load "
        f"{os.getloadavg()[0]:.1f} at the end; medians of {rounds} rounds, contestants in turn. "
        "Seconds: wall / client CPU / CPU of all hosts."
    ]
    for task in costs[sizes[0]]:
        lines += ["", f"| {task} | {' | '.join(f'{size} hosts' for size in sizes)} |"]
        lines.append("| --- |" + " --- |" * len(sizes))
        for who in costs[sizes[0]][task]:
            cells = " | ".join(_medians(costs[size][task][who]) for size in sizes)
            lines.append(f"| {who} | {cells} |")
    return "\n".join(lines)


def _medians(costs: Sequence[Cost]) -> str:
    fields = (field.name for field in dataclasses.fields(Cost))
    return " / ".join(f"{statistics.median(getattr(cost, name) for cost in costs):.1f}" for name in fields)


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 64, 256], help="numbers of hosts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--image", default="muster:cpu")
    parser.add_argument("--only", default="", help="only contestants whose name has this in it")
    parser.add_argument("--code", type=Path, default=ROOT / "train", help="the folder that is delivered")
    parser.add_argument("--deliver", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.deliver:
        deliver_here()
        return
    costs: dict[int, dict[str, dict[str, list[Cost]]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        lab(Path(folder), max(options.sizes), options.image) as made,
    ):
        (made.folder / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
        for size in options.sizes:
            made.only(size)
            for _ in range(options.rounds):
                fresh(made, options.code)
                for task, rows in contestants(made, size).items():
                    for who, words in rows.items():
                        if options.only in who:
                            table = costs.setdefault(size, {}).setdefault(task, {})
                            table.setdefault(who, []).append(cost := measure(words, made))
                            sys.stderr.write(f"{size} hosts, {who}: {cost}\n")
    sys.stdout.write(report(costs, options.rounds) + "\n")


if __name__ == "__main__":
    main()
