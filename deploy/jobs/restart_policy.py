"""Decides whether a job that failed starts again, and on which hosts. Pure: `Attempts` carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..console.text import count
from ..hosts.hostfile import Host
from ..launch.result import Failure

# Failures that another attempt would not change: the user ended the job, Slurm took all hosts away, or the
# launcher places ranks wrongly or is the wrong one for this program.
FINAL = frozenset({"interrupted", "stopped", "allocation", "placement", "world"})
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
        """What is allowed after a restart for this failure."""
        if failure is None or failure.kind != "port" or not self.other_ports:
            return self
        return replace(self, max_restarts=self.max_restarts + 1, other_ports=self.other_ports - 1)


@dataclass(frozen=True)
class Decision:
    """The hosts of the next attempt, none if there is no next one, and a line that tells the user."""

    hosts: tuple[Host, ...]
    message: str = ""

    @property
    def again(self) -> bool:
        """Whether there is a next attempt."""
        return bool(self.hosts)


def decide(failure: Failure | None, hosts: Sequence[Host], attempt: int, policy: Policy) -> Decision:
    """Decide what follows the end of an attempt. The first attempt has number 0.

    A host that fails is taken out of the job. The host of a failed rank stays: the failure may not recur.
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
    """Whether to try the same hosts once more: this machine had lost its network, and may get it back."""
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
    """Seconds to wait after this attempt, as the cause of a quick failure may need a moment to go away."""
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
