"""`muster launch --gate SECONDS`: measures the hosts of a job before its ranks start, and drains bad ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..bench import gate, kept
from ..bench.hosts import Speeds
from ..bench.hosts import read as read_speeds
from ..bench.links import Links
from ..bench.links import read as read_links
from ..bench.run import TOOLS, BenchmarkRun
from ..common.users import own_name
from ..console.fold import fold_names
from ..console.terminal import harmless
from ..console.text import clip, duration
from ..envs.present import Packages
from ..errors import UnfitError
from ..hosts import drained
from ..hosts.drained import Drained
from ..hosts.hostfile import Host
from ..plan.launcher import place_ranks
from ..plan.placement import Placement
from ..plan.program import Program
from ..plan.source_tree import Tree
from ..plan.spec import LaunchSpec
from .bench_job import NOT_OF_HOSTS, made, require_done, run_benchmark
from .inventory import Inventory
from .options import new_job, require_standby
from .shared import TRAIN, print_note

PATIENCE = 60
"""Seconds that ranks wait for others, beyond the time of the measurement."""


@dataclass(frozen=True)
class Gate:
    """How to measure. `seconds`: of a measurement, without the start of its job."""

    seconds: int
    hosts_file: Path
    runs: Path
    inventory: Inventory
    packages: Packages | None = None

    def passed(self, spec: LaunchSpec, placement: Placement) -> tuple[LaunchSpec, Placement]:
        """The request and its placement without hosts that fail; `UnfitError` if too few are left.

        Measures the hosts that get ranks, and the spare hosts that are made ready for a failure. A host that
        takes the place of another one is measured too.
        """
        began = time.monotonic()
        measured: set[str] = set()
        while not {host.name for host in placement.connected} <= measured:
            hosts = [
                replace(host, slots=placement.counts.get(host.name, host.slots), slots_by_default=False)
                for host in placement.connected
            ]
            failed, passed = self._failing(spec, hosts)
            measured |= passed
            if failed:
                self._drain(failed)
                spec = _without(spec, failed)
                placement = place_ranks(spec.hosts, spec)
                if spec.standby:
                    require_standby(spec.hosts, placement)
        names = fold_names([host.name for host in placement.connected])
        print_note(f"note: --gate: {names} passed after {duration(time.monotonic() - began)}")
        return spec, placement

    def _failing(self, spec: LaunchSpec, hosts: Sequence[Host]) -> tuple[dict[str, str], set[str]]:
        """The hosts that fail twice, with the reason of the second time, and those that pass.

        Once can be chance. If the job itself fails, its host fails if all others work without it.
        """
        ran = self._run(spec, hosts)
        if failure := ran.result.failure:
            others = [host for host in hosts if host.name != failure.host]
            if failure.kind in NOT_OF_HOSTS or not others or len(others) == len(hosts):
                require_done(ran)  # exits
            print_note(f"note: --gate measures again without {failure.host}: {_clipped(failure.headline)}")
            require_done(self._run(spec, others))
            return {str(failure.host): _clipped(failure.headline)}, set()
        names = {host.name for host in hosts}
        once = self._judged(ran)
        if not once:
            return {}, names
        print_note(f"note: --gate measures again: {'; '.join(_lines(once))}")
        ran = self._run(spec, hosts)
        require_done(ran)
        twice = {host: reason for host, reason in self._judged(ran).items() if host in once}
        return twice, names - twice.keys()

    def _judged(self, ran: BenchmarkRun) -> dict[str, str]:
        """The hosts that fail, by the others and by the baseline, which gets the figures of new hosts."""
        links: Links | None = None
        problems: dict[str, str] = {}
        if len({*ran.hosts}) > 1:
            first = {host: ran.hosts.index(host) for host in dict.fromkeys(ran.hosts)}
            printed = {number: ran.printed.get(rank, "") for number, rank in enumerate(first.values())}
            links, problems = read_links(ran.job, made(), [*first], printed)
        speeds, more = read_speeds(ran.job, made(), ran.hosts, ran.printed)
        now = gate.Measured(gate.of_hosts(speeds), links, {**problems, **more})
        if not self._has_record:
            return gate.failing(now, None, None)
        folder = kept.folder_beside(self.hosts_file)
        path = kept.baseline_of(folder, "gate-hosts")
        before = kept.read(path, Speeds)
        link_path = kept.baseline_of(folder, f"gate-links-{now.links.backend}") if now.links else None
        links_before = kept.read(link_path, Links) if link_path else None
        failing = gate.failing(now, before, links_before)
        kept.keep(path, gate.with_new_hosts(before, now.speeds, failing).as_json())
        if link_path and now.links:
            kept.keep(link_path, gate.with_new_links(links_before, now.links, failing).as_json())
        return failing

    def _run(self, spec: LaunchSpec, hosts: Sequence[Host]) -> BenchmarkRun:
        """Run the tool as the ranks of the job would run: with its environment, image, leases and network."""
        timeout = self.seconds + PATIENCE
        bench = replace(
            spec,
            job=new_job(),
            program=Program(
                module=f"{TOOLS}.gate", args=(f"--seconds={self.seconds}", f"--timeout={timeout}")
            ),
            tree=Tree(TRAIN, ".", ()),
            hosts=tuple(hosts),
            np=None,
            stdin=False,
            stall_timeout=float(timeout + PATIENCE),
            may_restart=False,
            max_restarts=0,
            min_hosts=1,
            spares=0,
            preload=False,
            grow=False,
            record=False,
            notify="",
        )
        return run_benchmark(bench, self.inventory, self.runs, packages=self.packages)

    @property
    def _has_record(self) -> bool:
        """Whether there is a hosts file to keep records beside; hosts of Slurm differ from job to job."""
        return self.inventory.access is not None and self.hosts_file.exists()

    def _drain(self, failed: Mapping[str, str]) -> None:
        """Put the hosts aside, and say so."""
        for line in _lines(failed):
            print_note(f"note: --gate: {line}")
        if not self._has_record:
            return
        now, by = time.time(), own_name()
        new = [Drained(host, None, by, now, f"--gate: {why}") for host, why in failed.items()]
        drained.change(self.hosts_file, lambda entries: drained.with_drained(entries, new))
        for entry in new:
            print_note(f"note: {entry.host} is drained; after a repair: {entry.undrain}")


def _without(spec: LaunchSpec, failed: Mapping[str, str]) -> LaunchSpec:
    """The request without hosts that failed; `UnfitError` if that is too few hosts for it."""
    hosts = tuple(host for host in spec.hosts if host.name not in failed)
    if sum(host.slots for host in hosts) < spec.np if spec.np else len(hosts) < max(1, spec.min_hosts):
        raise UnfitError((host, f"it fails --gate: {why}") for host, why in failed.items())
    used = place_ranks(hosts, replace(spec, spares=0)).hosts
    return replace(
        spec,
        hosts=hosts,
        spares=min(spec.spares, len(hosts) - len(used)),
        min_hosts=min(spec.min_hosts, len(used)),
    )


def _lines(reasons: Mapping[str, str]) -> list[str]:
    return [harmless(f"{host}: {why}") for host, why in reasons.items()]


def _clipped(text: str) -> str:
    return harmless(clip(" ".join(text.split()), 300))
