"""The platform of a launch by the facts of its hosts; hosts that cannot share one are an error. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...core.errors import UnfitError
from ...core.hosts.facts import Facts, HostEnvironments, minor
from ...core.text.fold import fold, fold_names
from .wanted import Platform, Requirements

MACHINES = ("x86_64", "aarch64")
OLDEST_GLIBC = (2, 17)


def platform_of(
    requirements: Requirements,
    facts: Mapping[str, Facts],
    environments: Mapping[str, HostEnvironments],
    launcher: str,
) -> Platform:
    """The platform of all hosts; `UnfitError` names the hosts that differ too much."""
    _require_wheels(environments)
    python = requirements.python or _same(
        facts, lambda host: minor(facts[host].python), "Python", "give --python-version"
    )
    machine = _same(
        environments, lambda host: environments[host].machine, "machine", "choose hosts with --include"
    )
    torch = ""
    if requirements.system_torch:
        _require_torch(facts)
        torch = _same(facts, lambda host: facts[host].torch or "", "torch", "leave out --system-torch")
    drivers = [host.driver for host in environments.values()]
    needs_mpi = launcher == "mpirun" and any(host.mpi is None for host in facts.values())
    return Platform(
        python=python,
        machine=machine,
        glibc=min((host.glibc for host in environments.values()), key=_numbers),
        driver=min(drivers, key=_numbers) if all(drivers) else "",
        torch=torch,
        own_python=" ".join(sorted({host.executable for host in facts.values()})) if torch else "",
        mpi=needs_mpi,
    )


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


def _require_wheels(environments: Mapping[str, HostEnvironments]) -> None:
    reasons = []
    for name, host in environments.items():
        if host.machine not in MACHINES:
            reasons.append((name, f"uv has no packages for a machine {host.machine}"))
        elif _numbers(host.glibc) < OLDEST_GLIBC:
            reasons.append((name, f"--requirements needs glibc 2.17 or newer, not {host.glibc or 'musl'}"))
    if reasons:
        raise UnfitError(reasons)


def _require_torch(facts: Mapping[str, Facts]) -> None:
    lacking = [(name, host.executable) for name, host in facts.items() if host.torch is None]
    if lacking:
        raise UnfitError(
            (name, f"{python} has no torch; leave out --system-torch, and torch comes as a wheel")
            for name, python in lacking
        )
