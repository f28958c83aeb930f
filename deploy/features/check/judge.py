"""Judges whether hosts are fit. Pure: hosts and measurements in, findings out.

A finding is an error if `muster launch` of the training program with this launcher would be refused or could
not work. It is a warning if the launch works, but slowly or not with every program. Programs read the ids of
findings, so an id never changes; docs/check.md lists them. This module compares hosts with each other; `host`
and `network` judge the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_high, median_low
from typing import NamedTuple

from ...core.hosts.host_facts import minor
from ...core.hosts.hostfile import Host
from ...core.plan.launcher import launcher_of
from ...core.plan.spec import LauncherName
from ...core.text.text import count
from .finding import Finding, Severity, error, have, of_error, warning
from .host import of_host
from .host_reports import Clock, HostReport, HostReports
from .network import network, ports

# Makefiles, file times and readers of logs notice a tenth of a second. NTP keeps a hundredth of that.
CLOCK_SECONDS = 0.1


def _mtu(measured: HostReport) -> str | None:
    return None if measured.health.mtu is None else str(measured.health.mtu)


def _variables(measured: HostReport) -> str:
    return measured.health.variables or "none"


def _usable_mpi(measured: HostReport) -> str | None:
    """The version of a host's Open MPI; None if it has an error that names the host already."""
    return None if launcher_of("mpirun").unfit(measured.facts) else measured.facts.mpi


class _Same(NamedTuple):
    """A value that should be the same on all hosts. A host whose value is None is skipped."""

    id: str
    severity: Severity
    what: str
    read: Callable[[HostReport], str | None]
    remedy: str = "install one version on all hosts"


_VARIABLES = "take them out of that login, or set them for all ranks: muster launch --env"
_ALIKE = (
    _Same("torch.version-differs", "error", "torch", lambda host: host.facts.torch),
    _Same("nccl.version-differs", "error", "NCCL", lambda host: host.health.nccl),
    _Same("cuda.version-differs", "warning", "torch for CUDA", lambda host: host.health.torch_cuda),
    _Same("driver.version-differs", "warning", "NVIDIA driver", lambda host: host.health.driver),
    _Same("python.version-differs", "warning", "Python", lambda host: minor(host.facts.python)),
    _Same("numpy.version-differs", "warning", "numpy", lambda host: host.health.numpy),
    _Same("kernel.version-differs", "warning", "kernel", lambda host: host.health.kernel),
    _Same("glibc.version-differs", "warning", "glibc", lambda host: host.health.glibc),
    _Same("mtu.differs", "warning", "MTU", _mtu, "set one MTU on the interfaces of all hosts: ip link"),
    _Same("nccl.variables-differ", "warning", "variables of NCCL", _variables, _VARIABLES),
    _Same("user.differs", "warning", "user", lambda host: host.health.user, "set user= in the hosts file"),
)
# Daemons of different versions do not understand each other.
_ALIKE_FOR_MPI = (
    _Same("mpi.version-differs", "error", "Open MPI", _usable_mpi),
    _Same("mpi4py.version-differs", "warning", "mpi4py", lambda host: host.facts.mpi4py),
)


def judge(
    hosts: Sequence[Host],
    measurements: HostReports,
    launcher: LauncherName,
) -> tuple[Finding, ...]:
    """All findings, in the order of the hosts, errors first."""
    by_host = {host: measurements.hosts[host.name] for host in hosts if host.name in measurements.hosts}
    findings = [of_error(name, reason) for name, reason in measurements.errors.items()]
    ranks = sum(host.slots for host in hosts)
    for host, measured in by_host.items():
        findings += of_host(host, measured, launcher, ranks)
    by_name = {host.name: measured for host, measured in by_host.items()}
    findings += differences(by_name, launcher)
    findings += twice(by_name)
    findings += clocks({name: measured.clock for name, measured in by_name.items()})
    findings += ports(hosts[0].name, by_name)
    findings += network(hosts, by_name, mpi=launcher_of(launcher).uses_mpi)
    order = {host.name: number for number, host in enumerate(hosts)}
    return tuple(sorted(findings, key=lambda each: (order.get(each.host, -1), each.severity)))


def unfit(findings: Sequence[Finding]) -> set[str]:
    """The hosts with an error."""
    return {finding.host for finding in findings if finding.severity == "error"}


def differences(by_host: Mapping[str, HostReport], launcher: LauncherName) -> Iterator[Finding]:
    """Findings for hosts that differ from the majority. A tie goes to the value of the first host."""
    uses_mpi = launcher_of(launcher).uses_mpi
    for same in (*_ALIKE, *(_ALIKE_FOR_MPI if uses_mpi else ())):
        values = {
            name: value for name, measured in by_host.items() if (value := same.read(measured)) is not None
        }
        most, among = Counter(values.values()).most_common(1)[0] if values else ("", 0)
        for name, value in values.items():
            if value != most:
                text = f"{same.what} {value}, where {count(among, 'host')} {have(among)} {most}"
                yield Finding(same.id, name, same.severity, text, same.remedy)
    if uses_mpi and any(measured.facts.mpi4py for measured in by_host.values()):
        for name, measured in by_host.items():
            if not measured.facts.mpi4py:
                yield warning(
                    "mpi4py.missing",
                    name,
                    "no mpi4py, which others have: an exception in one rank will not end MPI in the others",
                    "install mpi4py there",
                )
    if any(measured.facts.gpus for measured in by_host.values()):
        for name, measured in by_host.items():
            if not measured.facts.gpus:
                text = "no GPU, where others have: they would wait for it in NCCL"
                yield error("gpu.missing", name, text, "--exclude it, or take --backend gloo")


def twice(by_host: Mapping[str, HostReport]) -> Iterator[Finding]:
    """Findings for hosts that are another name of a host before them."""
    first: dict[str, str] = {}
    for name, measured in by_host.items():
        if (machine := measured.health.machine) and (other := first.setdefault(machine, name)) != name:
            text = f"{name} is the same machine as {other}: their ranks share its cores, memory and GPUs"
            yield warning("host.twice", name, text, f"leave one line, with the slots of both: {other}")


def clocks(clocks: Mapping[str, Clock]) -> Iterator[Finding]:
    """Findings for clocks that differ from the median of all clocks, which include the driver's.

    With an even number of clocks there are two middle ones; the one nearer to the driver's clock is used,
    not their mean.
    """
    ahead = {"": 0.0, **{name: clock.ahead for name, clock in clocks.items()}}
    middle = min(median_low(ahead.values()), median_high(ahead.values()), key=abs)
    others = "the others" if len(clocks) > 1 else "this machine's"
    for name, seconds in ahead.items():
        apart = seconds - middle
        uncertainty = clocks[name].uncertainty if name else 0.0
        if abs(apart) - uncertainty > CLOCK_SECONDS:
            yield warning(
                "clock.apart",
                name,
                f"its clock is {abs(apart):.3f} s {'ahead of' if apart > 0 else 'behind'} {others}",
                "let chrony or systemd-timesyncd keep it: timedatectl set-ntp true",
            )
