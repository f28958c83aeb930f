"""The time of a launch to its ranks: `fab` and `muster launch` against mpirun and torchrun by hand.

    make cluster && .venv/bin/python benchmarks/launch.py --rounds 9

It runs on the nodes of a hosts file, in one run, with the contestants in turn (A B C D A B C D ...), and
prints medians and ratios. Each starts the same program, which prints a line at once and does not import
torch. "By hand" means: the code is on the hosts already, and one `ssh` to the first host runs mpirun, or one
`ssh` to each host runs torchrun. Times are from the command to the first line of the first rank, to that of
the last, and to the end of the command; `fab launch` runs with unchanged files, so it sends nothing, after
one round that is not counted. "mpirun through Fabric" is a program of six lines that imports Fabric and runs
that mpirun on the first host: the least time of any driver on top of Fabric. "over shared connections" is a
launch with MUSTER_SSH=openssh and ControlMaster in the SSH configuration, after its first round.
`--before FOLDER` names a folder that holds another checkout under the name `muster`; the `fab launch` of that
checkout takes part too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import selectors
import shlex
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

from muster.deploy.core.hosts import hostfile  # noqa: E402  # the checkout's own, installed or not

PROGRAM = "import time; print('started', flush=True); time.sleep(1)\n"
FAB = Path(sys.executable).parent / "fab"
THROUGH_FABRIC = """\
import sys
from fabric import Config, Connection

configuration, host, command = sys.argv[1:]
Connection(host, config=Config(runtime_ssh_path=configuration)).run(command, in_stream=False)
"""
SHARED = "Host *\n    ControlMaster auto\n    ControlPath {}/%n\n    ControlPersist 60\n"
Commands = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Times:
    """Seconds from the command to the first rank's first line, the last rank's first line, and the end."""

    first: float
    last: float
    end: float
    peak_mib: float
    """Resident memory of the largest process of the command on this machine."""


def measure(commands: Commands, ranks: int, place: Path) -> Times:
    """Start the commands together, and time the arrival of the lines `started`."""
    # As users have it: Python keeps what it has compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    processes = [
        subprocess.Popen(command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for command in commands
    ]
    seen: list[float] = []
    with selectors.DefaultSelector() as selector:
        for process in processes:
            assert process.stdout is not None  # noqa: S101  # stdout=PIPE
            selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(60):
                chunk = os.read(key.fd, 1 << 16)
                seen += [time.perf_counter() - began] * chunk.count(b"started")
                if not chunk:
                    selector.unregister(key.fileobj)
    ends = [os.wait4(process.pid, 0) for process in processes]
    end = time.perf_counter() - began
    if any(status for _, status, _ in ends) or len(seen) < ranks:
        sys.exit(f"{shlex.join(commands[0])}: {len(seen)} of {ranks} ranks started")
    return Times(seen[0], seen[ranks - 1], end, max(usage.ru_maxrss for _, _, usage in ends) / 1024)


def contestants(
    hosts_file: Path, ssh: Sequence[str], before: Path | None, shared: Path
) -> dict[str, Commands]:
    """Return the commands of each contestant; torchrun by hand gets a new random port each round."""
    hosts = hostfile.load(hosts_file)
    ranks = sum(host.slots for host in hosts)
    by_hand = (
        "mpirun --np {ranks} --hostfile bench/hosts.txt --map-by slot --bind-to none python3 bench/program.py"
    )
    agent = (
        "python3 -m torch.distributed.run --nnodes {nodes} --node-rank {index} --nproc-per-node {slots} "
        "--master-addr {head} --master-port {port} bench/program.py"
    )
    port = random.randint(20000, 31000)  # noqa: S311  # spreads, does not protect
    words = ("launch", "--hosts", str(hosts_file), "--script", "program.py", "--launcher")
    fab, muster = (str(FAB), *words), (str(FAB.with_name("muster")), *words)
    over_shared = ("env", "MUSTER_SSH=openssh", *muster[:3], str(shared / "hosts.txt"), *muster[4:])
    earlier = ("env", f"PYTHONPATH={before}", *fab)
    return {
        "mpirun by hand": ((*ssh, hosts[0].name, by_hand.format(ranks=ranks)),),
        "mpirun through Fabric": (
            (sys.executable, "-c", THROUGH_FABRIC, ssh[-1], hosts[0].name, by_hand.format(ranks=ranks)),
        ),
        **({"fab launch --launcher mpirun, before": ((*earlier, "mpirun"),)} if before else {}),
        "fab launch --launcher mpirun": ((*fab, "mpirun"),),
        "muster launch --launcher mpirun": ((*muster, "mpirun"),),
        "muster launch --launcher mpirun, over shared connections": ((*over_shared, "mpirun"),),
        "torchrun by hand": tuple(
            (
                *ssh,
                host.name,
                agent.format(nodes=len(hosts), index=index, slots=host.slots, head=hosts[0].name, port=port),
            )
            for index, host in enumerate(hosts)
        ),
        **({"fab launch --launcher torchrun, before": ((*earlier, "torchrun"),)} if before else {}),
        "fab launch --launcher torchrun": ((*fab, "torchrun"),),
        "muster launch --launcher torchrun": ((*muster, "torchrun"),),
    }


def prepare(hosts_file: Path, ssh: Sequence[str], place: Path) -> None:
    """Put the program where it is launched from: here for fab, on every host for by hand."""
    (place / "program.py").write_text(PROGRAM)
    (place / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
    for host in hostfile.load(hosts_file):
        for name, text in (("program.py", PROGRAM), ("hosts.txt", hosts_file.read_text())):
            command = (*ssh, host.name, f"mkdir -p bench && cat > bench/{name}")
            subprocess.run(command, input=text.encode(), check=True)


@contextlib.contextmanager
def sharing(hosts_file: Path, place: Path) -> Iterator[Path]:
    """A folder with the hosts file, and SSH configuration by which commands share their connections."""
    folder = place / "shared"
    (folder / ".muster").mkdir(parents=True)
    (folder / "hosts.txt").write_text(hosts_file.read_text())
    configuration = folder / ".muster" / "ssh_config"
    configuration.write_text(
        SHARED.format(folder) + (hosts_file.parent / ".muster" / "ssh_config").read_text()
    )
    configuration.chmod(0o600)
    try:
        yield folder
    finally:
        for host in hostfile.load(hosts_file):
            end = ("ssh", "-F", str(configuration), "-O", "exit", host.name)
            subprocess.run(end, stderr=subprocess.DEVNULL, check=False)


def report(times: Mapping[str, Sequence[Times]]) -> str:
    """Return a table of medians with their range, and the time that `fab launch` adds to each launcher."""
    cores = os.cpu_count()
    load = os.getloadavg()[0]
    lines = [
        f"{platform.machine()}, {cores} cores, load {load:.1f} at the end; "
        f"{len(next(iter(times.values())))} rounds, contestants in turn",
        "",
        "| command | first rank, s | last rank, s | end, s | peak MiB here |",
        "|---|---|---|---|---|",
    ]
    for name, row in times.items():
        cells = [_spread([getattr(timing, field) for timing in row]) for field in ("first", "last", "end")]
        peak = statistics.median(timing.peak_mib for timing in row)
        lines.append(f"| {name} | {' | '.join(cells)} | {peak:.0f} |")
    launches = [name for name in times if "launch --launcher" in name or "through" in name]
    lines += ["", *(_compare(times, name) for name in launches)]
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _compare(times: Mapping[str, Sequence[Times]], name: str) -> str:
    launcher = next(word for word in ("mpirun", "torchrun") if word in name)
    pairs = list(zip(times[name], times[f"{launcher} by hand"], strict=True))
    added = [ours.last - theirs.last for ours, theirs in pairs]
    ratio = statistics.median(ours.last / theirs.last for ours, theirs in pairs)
    return f"{name} adds {_spread(added)} s to the last rank's first line (x {ratio:.2f})"


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=Path, default=Path("hosts.txt"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--before", type=Path, help="a folder that holds another checkout as `muster`")
    parser.add_argument(
        "--launchers", nargs="+", choices=("mpirun", "torchrun"), default=["mpirun", "torchrun"]
    )
    options = parser.parse_args()
    hosts_file = options.hosts.resolve()
    ssh = ("ssh", "-F", str(hosts_file.parent / ".muster" / "ssh_config"))
    ranks = sum(host.slots for host in hostfile.load(hosts_file))
    times: dict[str, list[Times]] = {}
    with tempfile.TemporaryDirectory() as folder, sharing(hosts_file, Path(folder)) as shared:
        prepare(hosts_file, ssh, Path(folder))
        for round_number in range(options.rounds + 1):
            for name, commands in contestants(hosts_file, ssh, options.before, shared).items():
                if not any(launcher in name for launcher in options.launchers):
                    continue
                taken = measure(commands, ranks, Path(folder))
                if round_number > 0:  # the first round sends the code and warms the caches
                    times.setdefault(name, []).append(taken)
    sys.stdout.write(report(times) + "\n")


if __name__ == "__main__":
    main()
