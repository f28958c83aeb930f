"""The table of faults that a launch must survive; the tests and docs/faults.md are made from it.

Six ranks sleep on three hosts. They call no collective, so only the agents can notice a fault. `strike` does
the fault to the job, or rank 4 does it itself (`deed`).
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

LAUNCHERS = ("mpirun", "torchrun")
STRIKE = "/tmp/muster-strike"
NOBODY = "02:00:00:00:00:01"
PROGRAM = f"""
import os, signal, sys, time
deed = sys.argv[1]
if deed == "abort":
    from mpi4py import MPI
print("ready", file=sys.stderr)
while os.environ["RANK"] != "4" or not os.path.exists("{STRIKE}"):
    time.sleep(0.02)
os.unlink("{STRIKE}")
print("struck at", time.time(), flush=True)
if deed == "raise":
    raise ValueError("boom")
if deed == "exit":
    sys.exit(3)
if deed == "abort":
    MPI.COMM_WORLD.Abort(7)
if deed == "eat":
    eaten = []
    while True:  # the fault is the end of the memory, not the beginning of the meal
        eaten.append(bytearray(1 << 26))
        print("struck at", time.time(), flush=True)
os.kill(os.getpid(), {{"kill": signal.SIGKILL, "stop": signal.SIGSTOP}}[deed])
"""


@dataclass(frozen=True)
class Struck:
    """A running job that a fault is done to."""

    cluster: Cluster
    driver: subprocess.Popen[str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of the table."""

    title: str
    within: float
    """Seconds from the fault to the verdict, and until no reachable host has a process of the job."""
    says: str | tuple[str, ...]
    """The beginning of the verdict; of several, any matches."""
    status: int
    deed: str = "wait"
    strike: Callable[[Struck], object] = lambda struck: struck.cluster.exec("node3", ["touch", STRIKE])
    launchers: tuple[str, ...] = LAUNCHERS
    words: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    mend: Callable[[Cluster], object] = lambda cluster: None


# ---- the strikes ------------------------------------------------------------------------------------------


def kill_on(node: str, name: str, struck: Struck) -> float:
    """Kill (SIGKILL) the node's last process whose command begins with `name`; return the time."""
    (*_, pid) = (process.pid for process in struck.cluster.processes(node) if process.args.startswith(name))
    return now_and(struck.cluster, node, f"kill -9 {pid}")


def now_and(cluster: Cluster, node: str, command: str) -> float:
    """Run a shell command on a node; return the time at which it began there."""
    return float(cluster.exec(node, ["sh", "-c", f"date +%s.%N; {command}"]).stdout)


def signal_driver(numbers: tuple[int, ...], struck: Struck) -> None:
    for number in numbers:
        struck.driver.send_signal(number)
        time.sleep(0.1)


def drop_connection(struck: Struck) -> float:
    """End the sshd process that serves the driver's connection to node2."""
    command = "kill -9 $(ps -o ppid= -p $(pgrep -f '^python3 -c .muster agent'))"
    return now_and(struck.cluster, "node2", command)


def to_node3(action: str, struck: Struck) -> None:
    getattr(struck.cluster, action)("node3")


def restart_node3(cluster: Cluster) -> None:
    cluster.start("node3")


def eat(struck: Struck) -> None:
    limit_memory(struck.cluster, "1g")
    struck.cluster.exec("node3", ["touch", STRIKE])


def limit_memory(cluster: Cluster, limit: str) -> None:
    words = ("docker", "update", "--memory", limit, "--memory-swap", limit, cluster.container("node3"))
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def network(cluster: Cluster, action: str, *alias: str) -> None:
    name = f"{cluster.env['COMPOSE_PROJECT_NAME']}_cluster"
    subprocess.run(["docker", "network", action, *alias, name, cluster.container("node3")], check=True)


def lose_packets(struck: Struck) -> float:
    """Send node3's packets to an unused MAC address: node3 falls silent, without any error."""
    command = for_each_other(struck.cluster, f"ip neigh replace $one lladdr {NOBODY} nud permanent dev $card")
    return float(struck.cluster.beside("node3", f"{command}; date +%s.%N"))


def find_packets(cluster: Cluster) -> None:
    cluster.beside("node3", for_each_other(cluster, "ip neigh delete $one dev $card || true"))


def for_each_other(cluster: Cluster, command: str) -> str:
    """Return a shell loop over the other addresses."""
    return f"set -e; for one in {' '.join(cluster.others('node3'))}; do {command}; done"


# ---- the table --------------------------------------------------------------------------------------------

GONE = "node3: the SSH connection to its agent is gone"
SILENT = "node3: silent for 10 s: frozen, or cut off from the network"

FAULTS: Mapping[str, Fault] = {
    "raise": Fault(
        title="a rank raises", within=2, deed="raise", status=1, says="rank 4 on node3: exit status 1"
    ),
    "exit": Fault(
        title="a rank exits with 3", within=2, deed="exit", status=3, says="rank 4 on node3: exit status 3"
    ),
    "kill": Fault(
        title="a rank is killed (SIGKILL)",
        within=2,
        deed="kill",
        status=137,
        says="rank 4 on node3: SIGKILL (9)\n",
    ),
    "memory": Fault(
        title="a rank runs out of memory",
        within=2,
        deed="eat",
        strike=eat,
        status=137,
        says="rank 4 on node3: SIGKILL (9): out of memory, the kernel chose it (limit 1024 MiB)",
        mend=lambda cluster: limit_memory(cluster, "1t"),
    ),
    "abort": Fault(
        title="a rank calls MPI_Abort(7)",
        within=2,
        deed="abort",
        launchers=("mpirun",),
        status=7,
        says="rank 4 on node3: exit status 7",
    ),
    "wrapper": Fault(
        title="a rank's wrapper is killed",
        within=2,
        strike=partial(kill_on, "node3", "/usr/bin/python3 -IS"),
        status=137,
        says=("rank 4 on node3: SIGKILL (9)", "rank 5 on node3: SIGKILL (9)"),
    ),
    "daemon": Fault(
        title="Open MPI's daemon of a host is killed",
        within=5,
        strike=partial(kill_on, "node2", "/usr/bin/prted"),
        launchers=("mpirun",),
        status=255,
        says="node2: mpirun's daemon ended with",
    ),
    "mpirun": Fault(
        title="mpirun is killed",
        within=5,
        strike=partial(kill_on, "node1", "prterun"),
        launchers=("mpirun",),
        status=137,
        says="node1: mpirun ended with SIGKILL",
    ),
    "agent": Fault(
        title="torchrun's agent of a host is killed",
        within=5,
        strike=partial(kill_on, "node2", "/usr/bin/python3 -c import runpy"),
        launchers=("torchrun",),
        status=137,
        says="node2: torchrun ended with SIGKILL",
    ),
    "host-agent": Fault(
        title="the agent of a host is killed",
        within=5,
        strike=partial(kill_on, "node3", 'python3 -c "muster agent"'),
        status=3,
        says="node3: its agent was killed there",
    ),
    "sigint": Fault(
        title="Ctrl-C",
        within=5,
        strike=partial(signal_driver, (signal.SIGINT,)),
        status=130,
        says="SIGINT (2)",
    ),
    "sigint-twice": Fault(
        title="Ctrl-C twice, quickly",
        within=5,
        strike=partial(signal_driver, (signal.SIGINT, signal.SIGINT)),
        status=130,
        says="SIGINT (2)",
    ),
    "sigterm": Fault(
        title="the driver gets SIGTERM",
        within=5,
        strike=partial(signal_driver, (signal.SIGTERM,)),
        status=143,
        says="SIGTERM (15)",
    ),
    "sighup": Fault(
        title="the driver's terminal closes (SIGHUP)",
        within=5,
        strike=partial(signal_driver, (signal.SIGHUP,)),
        status=129,
        says="SIGHUP (1)",
    ),
    "sigkill": Fault(
        title="the driver is killed",
        within=5,
        strike=partial(signal_driver, (signal.SIGKILL,)),
        status=-9,
        says="",
    ),
    "connection": Fault(
        title="the driver's SSH connection breaks",
        within=5,
        strike=drop_connection,
        status=3,
        says="node2: the SSH connection to its agent is gone",
    ),
    "power": Fault(
        title="a host loses its power",
        within=5,
        strike=partial(to_node3, "kill"),
        status=3,
        says=GONE,
        unreachable=("node3",),
        mend=restart_node3,
    ),
    "shutdown": Fault(
        title="a host is shut down",
        within=5,
        strike=partial(to_node3, "stop"),
        status=3,
        says=GONE,
        unreachable=("node3",),
        mend=restart_node3,
    ),
    "frozen": Fault(
        title="a host freezes",
        within=15,
        strike=partial(to_node3, "pause"),
        status=3,
        says=SILENT,
        unreachable=("node3",),
        mend=restart_node3,
    ),
    "cut-off": Fault(
        title="a host is cut off from the network",
        within=15,
        strike=lambda struck: network(struck.cluster, "disconnect"),
        status=3,
        says=GONE,
        mend=lambda cluster: network(cluster, "connect", "--alias", "node3"),
    ),
    "packets": Fault(
        title="a host's packets are dropped",
        within=15,
        strike=lose_packets,
        status=3,
        says=SILENT,
        mend=find_packets,
    ),
    "stopped": Fault(
        title="a rank is stopped (SIGSTOP), with --stall-timeout 5",
        within=15,
        deed="stop",
        words=("--stall-timeout", "5"),
        status=3,
        says=(
            "rank 4 on node3: stopped (SIGSTOP) for 5 s",
            "rank 4 on node3: stopped (SIGSTOP), and no rank has printed anything or used",  # all sleep
        ),
    ),
}
CASES = [(name, launcher) for name, fault in FAULTS.items() for launcher in fault.launchers]

# The agents notice these, whatever launcher there is: the tests do them under mpirun, benchmarks/faults.py
# under both. torchrun imports PyTorch on each host.
OF_THE_AGENTS = {
    *("host-agent", "sigint-twice", "sigterm", "sighup", "sigkill", "connection"),
    *("power", "shutdown", "frozen", "cut-off", "packets"),
}
# Beside other tests these have taken up to five seconds, and twice their limit is four.
QUIET = {case for case in CASES if FAULTS[case[0]].within <= 2}
TESTED = [case for case in CASES if case not in {(name, "torchrun") for name in OF_THE_AGENTS}]

# The rows that `make test` runs, without limits of time; the other rows are for `make soak`.
IN_EVERY_TEST = {
    *(("kill", "mpirun"), ("memory", "mpirun"), ("daemon", "mpirun"), ("agent", "torchrun")),
    *(("sigkill", "mpirun"), ("power", "mpirun"), ("frozen", "mpirun")),
}
