"""What differs between hosts that should be alike: versions, users, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import median_high, median_low
from typing import NamedTuple

from ..console.text import count
from ..plan.launcher import LauncherName, launcher_of
from .finding import Finding, Severity, have, minor
from .image import name as image_name
from .measurements import Clock, Examined

# Makefiles, file times and readers of logs notice a tenth of a second. NTP keeps a hundredth of that.
CLOCK_SECONDS = 0.1


class _Same(NamedTuple):
    """A value that should be the same on all hosts. A host whose value is None is skipped."""

    id: str
    severity: Severity
    what: str
    read: Callable[[Examined], str | None]
    remedy: str = "install one version on all hosts"


_ALIKE = (
    _Same("torch.version-differs", "error", "torch", lambda host: host.facts.torch),
    _Same("nccl.version-differs", "error", "NCCL", lambda host: host.health.nccl),
    _Same("cuda.version-differs", "warning", "torch for CUDA", lambda host: host.health.torch_cuda),
    _Same("driver.version-differs", "warning", "NVIDIA driver", lambda host: host.health.driver),
    _Same("python.version-differs", "warning", "Python", lambda host: minor(host.facts.python)),
    _Same("image.differs", "warning", "image", image_name, "muster image push brings one image to all hosts"),
    _Same("user.differs", "warning", "user", lambda host: host.health.user, "set user= in the hosts file"),
)
# Daemons of different versions do not understand each other.
_ALIKE_FOR_MPI = (
    _Same("mpi.version-differs", "error", "Open MPI", lambda host: host.facts.mpi),
    _Same("mpi4py.version-differs", "warning", "mpi4py", lambda host: host.facts.mpi4py),
)


def differences(examined: Mapping[str, Examined], launcher: LauncherName) -> Iterator[Finding]:
    """Findings for hosts that differ from the majority. A tie goes to the value of the first host."""
    uses_mpi = launcher_of(launcher).uses_mpi
    for same in (*_ALIKE, *(_ALIKE_FOR_MPI if uses_mpi else ())):
        values = {
            name: value for name, measured in examined.items() if (value := same.read(measured)) is not None
        }
        most, among = Counter(values.values()).most_common(1)[0] if values else ("", 0)
        for name, value in values.items():
            if value != most:
                text = f"{same.what} {value}, where {count(among, 'host')} {have(among)} {most}"
                yield Finding(same.id, name, same.severity, text, same.remedy)
    if uses_mpi and any(measured.facts.mpi4py for measured in examined.values()):
        for name, measured in examined.items():
            if not measured.facts.mpi4py:
                yield Finding(
                    "mpi4py.missing",
                    name,
                    "warning",
                    "no mpi4py, which others have: an exception in one rank will not end MPI in the others",
                    "install mpi4py there",
                )
    if any(measured.facts.gpus for measured in examined.values()):
        for name, measured in examined.items():
            if not measured.facts.gpus:
                text = "no GPU, where others have: they would wait for it in NCCL"
                yield Finding("gpu.missing", name, "error", text, "--exclude it, or take --backend gloo")


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
            yield Finding(
                "clock.apart",
                name,
                "warning",
                f"its clock is {abs(apart):.3f} s {'ahead of' if apart > 0 else 'behind'} {others}",
                "let chrony or systemd-timesyncd keep it: timedatectl set-ntp true",
            )
