"""The platform of a launch, from what its hosts say; names hosts that cannot have one environment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..console.fold import fold, fold_names
from ..errors import UnfitError
from ..hosts.facts import Facts, HostEnvironments
from .wanted import Platform, Requirements

MACHINES = ("x86_64", "aarch64")
OLDEST_GLIBC = (2, 17)


def platform_of(
    asked: Requirements, facts: Mapping[str, Facts], there: Mapping[str, HostEnvironments], launcher: str
) -> Platform:
    """What all hosts have; `UnfitError` names the hosts that differ where they must not."""
    _require_wheels(there)
    python = asked.python or _same(
        facts, lambda host: _minor(facts[host].python), "Python", "give --python-version"
    )
    machine = _same(there, lambda host: there[host].machine, "machine", "choose hosts with --include")
    torch = ""
    if asked.system_torch:
        _require_torch(facts)
        torch = _same(facts, lambda host: facts[host].torch or "", "torch", "leave out --system-torch")
    drivers = [known.driver for known in there.values()]
    needs_mpi = launcher == "mpirun" and any(known.mpi is None for known in facts.values())
    return Platform(
        python=python,
        machine=machine,
        glibc=min((known.glibc for known in there.values()), key=_numbers),
        driver=min(drivers, key=_numbers) if all(drivers) else "",
        torch=torch,
        own_python=" ".join(sorted({known.executable for known in facts.values()})) if torch else "",
        mpi=needs_mpi,
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


def _same(hosts: Mapping[str, object], value: Callable[[str], str], what: str, remedy: str) -> str:
    values = fold((host, value(host)) for host in hosts)
    if len(values) > 1:
        usual = f"{values[0][1]} on {fold_names(values[0][0])}"
        raise UnfitError(
            (host, f"{what} {other}, but {usual}: no environment fits both; {remedy}")
            for names, other in values[1:]
            for host in names
        )
    return values[0][1]


def _require_wheels(there: Mapping[str, HostEnvironments]) -> None:
    reasons = []
    for host, known in there.items():
        if known.machine not in MACHINES:
            reasons.append((host, f"uv has no packages for a machine {known.machine}"))
        elif _numbers(known.glibc) < OLDEST_GLIBC:
            reasons.append((host, f"--requirements needs glibc 2.17 or newer, not {known.glibc or 'musl'}"))
    if reasons:
        raise UnfitError(reasons)


def _require_torch(facts: Mapping[str, Facts]) -> None:
    lacking = [(host, known.executable) for host, known in facts.items() if known.torch is None]
    if lacking:
        raise UnfitError(
            (host, f"{python} has no torch; leave out --system-torch, and torch comes as a wheel")
            for host, python in lacking
        )
