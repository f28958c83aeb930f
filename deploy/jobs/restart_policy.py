"""Decides whether a failed job starts again, and on which hosts. Pure: `Attempts` executes the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..common.runs import STOPS
from ..console.text import count
from ..hosts.hostfile import Host
from ..launch.result import Failure

# Failures that another attempt would not change: somebody ended the job, Slurm ended the allocation, or the
# launcher places ranks wrongly or cannot start this program.
FINAL = STOPS | {"allocation", "placement", "world"}
FINAL_STATUS = 2  # a mistake in what the user wrote
OTHER_PORTS = 2
"""How often a launch restarts with a new port because its port was taken; these restarts are not counted."""
BACKOFF_SECONDS = (1.0, 2.0)
NETWORK_SECONDS, RETRY_SECONDS = 120.0, 3.0  # how long a restart waits for the network of this machine


@dataclass(frozen=True)
class Policy:
    """How often a job may start again, and on how few hosts."""

    max_restarts: int
    min_hosts: int
    other_ports: int = OTHER_PORTS

    def after(self, failure: Failure | None) -> Policy:
        """The policy after a restart for this failure."""
        if failure is None or failure.kind != "port" or not self.other_ports:
            return self
        return replace(self, max_restarts=self.max_restarts + 1, other_ports=self.other_ports - 1)


@dataclass(frozen=True)
class Decision:
    """The hosts of the next attempt, none for no attempt, and a line for the user."""

    hosts: tuple[Host, ...]
    message: str = ""

    @property
    def again(self) -> bool:
        """Whether there is a next attempt."""
        return bool(self.hosts)


def decide(failure: Failure | None, hosts: Sequence[Host], attempt: int, policy: Policy) -> Decision:
    """Decide on the next attempt. The first attempt has number 0.

    A host that fails leaves the job. The host of a failed rank stays: the failure may not recur.
    """
    if failure and failure.kind == "port" and policy.other_ports:
        return Decision(tuple(hosts), f"{failure.headline}; the launch starts again with another port")
    if failure is None or policy.max_restarts == 0 or failure.kind in FINAL:
        return Decision(())
    if failure.kind == "launcher" and failure.exit_status == FINAL_STATUS:
        return Decision(())
    if attempt >= policy.max_restarts:
        return Decision((), f"no restart: that was the last of {count(attempt, 'restart')}")
    if failure.kind == "host" and failure.host:
        return without({failure.host: failure.reason}, hosts, attempt, policy)
    return Decision(tuple(hosts), f"{failure.headline}; {_next(hosts, attempt, policy)}")


def without(lost: Mapping[str, str], hosts: Sequence[Host], attempt: int, policy: Policy) -> Decision:
    """The next attempt without these hosts, each with its reason; no attempt if too few hosts are left."""
    left = tuple(host for host in hosts if host.name not in lost)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in lost.items())
    if len(left) < policy.min_hosts:
        return Decision(
            (),
            f"no restart: {count(len(left), 'host')} left, --min-hosts {policy.min_hosts} ({reasons})",
        )
    return Decision(left, f"{reasons}; {_next(left, attempt, policy)}")


def awaits_network(failure: Failure | None, unreached: Mapping[str, str], at: float) -> bool:
    """Whether to try the same hosts again: this machine had lost its network, which may return."""
    return (
        failure is not None
        and failure.kind in {"network", "driver"}  # a machine that was suspended may need its network too
        and len(unreached) > 1
        and at < failure.at + NETWORK_SECONDS
    )


def _next(hosts: Sequence[Host], attempt: int, policy: Policy) -> str:
    names = ", ".join(host.name for host in hosts)
    return f"restart {attempt + 1} of {policy.max_restarts} on {names}"


def backoff(attempt: int) -> float:
    """Seconds to wait after this attempt: the cause of a quick failure may need a moment to disappear."""
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
