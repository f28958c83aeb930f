"""`muster check`: whether hosts are fit."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...cli.command import Exit
from ...cli.inventory import Inventory, inventory_or_this_machine, site_findings, with_source
from ...cli.shared import JSON, RUNS_FOLDER, SLOTS, THIS_ALLOCATION, SlurmOptions, runs_of, write_json
from ...core.connect.cluster import CLOCKS_AT_ONCE, Cluster
from ...core.connect.fanout import HostOutcomes, Result, ask_every, on_every
from ...core.connect.requests import OPEN_PORT, REACH, Answer, Reached, Request
from ...core.errors import HostError, MusterError, UnfitError, UsageError
from ...core.hosts.hostfile import Host
from ...core.hosts.rendezvous import no_port, peers
from ...core.hosts.slots import SlotRule, counted_slots, slot_rule
from ...core.plan.flags import flag
from ...core.plan.launcher import place_ranks
from ...core.plan.spec import DEFAULT_LAUNCHER, LAUNCHERS, LauncherName, LaunchSpec
from ...core.text.columns import width_of
from ...core.text.fold import HostMessage, fold_messages
from ...core.text.terminal import harmless
from ...core.text.text import count, fitted, size, table
from ..leases.messages import LEASES, Device
from .finding import Finding, Severity, of_error
from .host_reports import Clock, HostReport, HostReports
from .judge import judge
from .judge import unfit as unfit_of
from .messages import HEALTH
from .network import rank_addresses

if TYPE_CHECKING:
    from .command_bench import BenchResult

# nvidia-smi and a slow disk may each take some seconds.
HEALTH_SECONDS = 40.0
# An agent gives up on an address after 3 s. It tries at most MOST_PEERS hosts (core/hosts/rendezvous.py).
REACH_SECONDS = 15.0


def ask_hosts(cluster: Cluster) -> HostReports:
    """Connect to every host, and measure those that answer. The cluster stays connected."""
    survey = _Survey(cluster)
    survey.connect()
    health = survey.all(HEALTH, HEALTH_SECONDS)
    leased = survey.leased()
    ports = survey.ports()
    clocks = survey.clocks()
    reached = survey.reach(ports)
    return HostReports(
        hosts={
            host.name: HostReport(
                facts=cluster.facts[host.name],
                health=health[host.name],
                clock=clocks[host.name],
                addresses=tuple(cluster.addresses(host)),
                rendezvous=ports[host.name],
                reached=reached[host.name],
                leased=leased.get(host.name, ()),
            )
            for host in cluster.hosts
            if host.name not in survey.errors
        },
        errors=survey.errors,
    )


class _Survey:
    """Asks all hosts. A host without a valid answer is not asked again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.errors: dict[str, HostError] = {}
        self._nonces = {host.name: secrets.token_hex(8) for host in cluster.hosts}

    @property
    def names(self) -> list[str]:
        """The names of the hosts that have answered every question so far."""
        return [host.name for host in self.cluster.hosts if host.name not in self.errors]

    def connect(self) -> None:
        """Start an agent on every host."""
        errors = self.cluster.connect()
        self.errors = {name: _as_host_error(name, error) for name, error in errors.items()}

    def all(
        self,
        request: Request[Answer],
        seconds: float,
        arguments: Callable[[str], Mapping[str, Any]] = lambda host: {},
    ) -> dict[str, Answer]:
        """The answer of each host to a request."""
        channels = {name: self.cluster.channels[name] for name in self.names}
        return self._note(ask_every(channels, request, seconds, arguments))

    def leased(self) -> dict[str, tuple[Device, ...]]:
        """The GPUs that jobs lease, of the hosts that have GPUs and name them."""
        facts = self.cluster.facts
        channels = {name: self.cluster.channels[name] for name in self.names if facts[name].devices}
        answers = ask_every(channels, LEASES, HEALTH_SECONDS).results
        return {name: tuple(gpu for gpu in answer.gpus if gpu.job) for name, answer in answers.items()}

    def ports(self) -> dict[str, int | HostError]:
        """For each host, a port that the others can try to reach, or the error that it has none."""
        arguments = {name: {"nonce": nonce, "probe": True} for name, nonce in self._nonces.items()}
        answers = self.all(OPEN_PORT, REACH_SECONDS, arguments.__getitem__)
        return {name: answer.port or no_port(answer.refused) for name, answer in answers.items()}

    def clocks(self) -> dict[str, Clock]:
        """Measure the clock of every host, only some hosts at a time."""
        channels = self.cluster.channels
        measured = on_every(
            self.names, lambda name: Clock(*channels[name].measure_clock()), at_once=CLOCKS_AT_ONCE
        )
        return self._note(measured)

    def reach(self, ports: Mapping[str, int | HostError]) -> dict[str, dict[str, Reached]]:
        """How each host reaches itself and the other hosts that have a port; of many hosts, its `peers`."""
        targets = [
            {
                "host": host.name,
                "addresses": self.cluster.addresses(host),
                "port": ports[host.name],
                "nonce": self._nonces[host.name],
            }
            for host in self.cluster.hosts
            if host.name not in self.errors and not isinstance(ports[host.name], HostError)
        ]
        indexes = {target["host"]: index for index, target in enumerate(targets)}
        reached: dict[str, dict[str, Reached]] = {name: {} for name in self.names}

        def arguments(name: str) -> dict[str, Any]:
            return {"targets": [targets[index] for index in peers(indexes.get(name, 0), len(targets))]}

        answers = self.all(REACH, REACH_SECONDS, arguments)
        reached |= {name: dict(answer.reached) for name, answer in answers.items()}
        return self._again(targets, reached)

    def _again(
        self, targets: Sequence[dict[str, Any]], reached: dict[str, dict[str, Reached]]
    ) -> dict[str, dict[str, Reached]]:
        """Try the unreached addresses of ranks a second time.

        The first try gives the other addresses of a host little time once one of them was reached.
        """
        addresses = rank_addresses(
            self.cluster.hosts[0].name,
            self.cluster.facts,
            {target["host"]: target["addresses"] for target in targets},
            {name: reached[name] for name in self.names},
        )
        again = {
            name: [
                {**target, "addresses": list(addresses[target["host"]])}
                for target in targets
                if target["host"] in addresses and _is_open(reached[name], target["host"], addresses)
            ]
            for name in self.names
        }
        channels = {name: self.cluster.channels[name] for name, retried in again.items() if retried}
        outcomes = ask_every(channels, REACH, REACH_SECONDS, lambda name: {"targets": again[name]})
        for name, answer in self._note(outcomes).items():
            for target, seen in answer.reached.items():
                first = reached[name].get(target, Reached())
                reached[name][target] = Reached(
                    {**first.interfaces, **seen.interfaces}, {**first.refused, **seen.refused}
                )
        return reached

    def _note(self, outcome: HostOutcomes[Result]) -> dict[str, Result]:
        """Return the results, and keep the errors: a host with an error is not asked again."""
        self.errors |= {name: _as_host_error(name, error) for name, error in outcome.errors.items()}
        return outcome.results


def _is_open(reached: Mapping[str, Reached], target: str, addresses: Mapping[str, Sequence[str]]) -> bool:
    """Whether a host was reached, but the addresses of its ranks neither answered nor refused."""
    seen = reached.get(target)
    if seen is None or not seen.interfaces:
        return False
    return not any(address in seen.interfaces or address in seen.refused for address in addresses[target])


def _as_host_error(name: str, error: MusterError) -> HostError:
    """The error of one host, without its name in front."""
    if isinstance(error, HostError):
        return HostError(error.kind, error.text, error.remedy)
    return HostError("host.failed", error.reason, f"try: muster shell {name}")


OPTIONAL = ("/dev/shm", "clock", "disk", "Python")  # noqa: S108  # findings name what is wrong in these
"""The columns that a narrow terminal does not get, in this order."""
COLUMNS = ("host", "slots", "cores", "GPUs", "Open MPI", "torch", "Python", "clock", "disk", "/dev/shm")  # noqa: S108


def _host_json(measured: HostReport | None) -> dict[str, Any]:
    if measured is None:
        return {"facts": None, "health": None, "clock": None, "reached": None}
    return {
        "facts": asdict(measured.facts),
        "health": asdict(measured.health),
        "clock": {"ahead_s": measured.clock.ahead, "uncertainty_s": measured.clock.uncertainty},
        "reached": {name: asdict(reached) for name, reached in measured.reached.items()},
    }


def _table(
    hosts: Sequence[Host], measurements: HostReports, findings: Sequence[Finding], width: int
) -> list[str]:
    rows = [(*cells(host, measurements.hosts.get(host.name)), verdict(host.name, findings)) for host in hosts]
    columns = [*zip((*COLUMNS, ""), *rows, strict=True)]
    optional = [*OPTIONAL]
    while max(map(len, lines := table(zip(*columns, strict=True)))) > width and optional:
        name = optional.pop(0)
        columns = [column for column in columns if column[0] != name]
    return lines


def cells(host: Host, measured: HostReport | None) -> tuple[str, ...]:
    """The row of a host, a text for each of COLUMNS."""
    if measured is None:
        return (host.name, str(host.slots), *["-"] * (len(COLUMNS) - 2))
    facts, health = measured.facts, measured.health
    return (
        host.name,
        str(host.slots),
        str(facts.cores),
        str(facts.gpus),
        facts.mpi or "none",
        facts.torch or "none",
        facts.python,
        f"{measured.clock.ahead * 1e3:+.2f} ms",
        _free(health.folders[0].free),
        _free(health.shm_free),
    )


def verdict(name: str, findings: Sequence[Finding]) -> str:
    """`fit`, `fit, 1 warning` or `2 errors, 1 warning`."""
    severities = [finding.severity for finding in findings if finding.host == name]
    counts = [
        count(severities.count(severity), severity)
        for severity in ("error", "warning")
        if severities.count(severity)
    ]
    return ", ".join(counts if "error" in severities else ["fit", *counts])


def _explained(findings: Sequence[Finding]) -> list[str]:
    """Each finding with its remedy."""
    lines = []
    for finding in folded(findings):
        lines += ["", f"{finding.severity.upper():<8}{finding.host}: {finding.text}  [{finding.id}]"]
        lines += [f"{'':<8}do: {finding.remedy}"] if finding.remedy else []
    return lines


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """Equal findings as one, with the names of their hosts as ranges; errors before warnings."""
    groups: dict[tuple[Severity, str], list[HostMessage]] = {}
    for finding in sorted(findings, key=lambda item: item.severity):
        message = HostMessage(finding.host, finding.text, finding.remedy)
        groups.setdefault((finding.severity, finding.id), []).append(message)
    return [
        Finding(kind, message.host or "this machine", severity, message.text, message.remedy)
        for (severity, kind), messages in groups.items()
        for message in fold_messages(messages)
    ]


def summary(hosts: Sequence[Host], findings: Sequence[Finding]) -> str:
    """`2 of 3 hosts are fit, 1 warning`."""
    bad = {host.name for host in hosts} & unfit_of(findings)
    warnings = sum(finding.severity == "warning" for finding in findings)
    if not hosts:
        errors = sum(finding.severity == "error" for finding in findings)
        return ", ".join([*([count(errors, "error")] if errors else ["fit"]), count(warnings, "warning")])
    text = f"{len(hosts) - len(bad)} of {count(len(hosts), 'host')} {'is' if len(hosts) == 1 else 'are'} fit"
    return f"{text}, {count(warnings, 'warning')}" if warnings else text


def _free(number: int | None) -> str:
    return "none" if number is None else size(number)


@dataclass(frozen=True)
class Check(SlurmOptions):
    """Check whether every host is fit for a launch, and name what fixes it."""

    groups: ClassVar = {"Hosts": "hosts include exclude slurm python"}

    slurm: str = flag(
        "",
        "check a Slurm site, and the hosts that Slurm gives for these options of salloc",
        "OPTIONS",
        alone=THIS_ALLOCATION,
    )
    launcher: LauncherName | Literal[""] = flag(
        "",
        "the launcher for which hosts must be fit: mpirun (default) or torchrun",
        "NAME",
        choices=LAUNCHERS,
    )
    slots: str = flag("", SLOTS, "SLOTS")
    bench: bool = flag(
        False, "also measure links and hosts in a short form, each as a job; slow ones are warnings"
    )
    runs: str = flag(
        RUNS_FOLDER, "the folder in which to make the folders of these jobs (default: runs)", "FOLDER"
    )
    json: bool = flag(False, f"{JSON}: all measurements, and every finding with its id")

    def run(self) -> None:
        """Examine the hosts, print the findings, and exit with 3 if one is not fit."""
        if self.runs != RUNS_FOLDER and not self.bench:
            raise UsageError(f"--runs {self.runs} is for the jobs of --bench; leave it out, or add --bench")
        rule = slot_rule(self.slots) if self.slots else None
        launcher, options = self.launcher or DEFAULT_LAUNCHER, with_source(self)
        site = [
            Finding(each.id, "Slurm", each.severity, each.text, each.remedy)
            for each in (site_findings(options.slurm) if options.slurm else ())
        ]
        if options.slurm and (unfit_of(site) or not _has_hosts(options.slurm)):
            checkup = Checkup(launcher, tuple(site))
        else:
            with inventory_or_this_machine(options, self.launcher, rule) as inventory:
                checkup = examined(inventory, self.launcher or inventory.launcher, rule, site)
                if self.bench:
                    checkup = _with_bench(checkup, inventory, self.python, runs_of(self.runs))
        if self.json:
            write_json(checkup.as_json())
        else:
            sys.stdout.write(fitted(checkup.as_text(width_of(sys.stdout)), sys.stdout))
        if checkup.unfit:
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class Checkup:
    """Hosts, their measurements, and the findings."""

    launcher: LauncherName
    findings: tuple[Finding, ...]
    hosts: tuple[Host, ...] = ()
    measurements: HostReports = field(default_factory=lambda: HostReports({}, {}))
    measured: BenchResult | None = None
    """With `--bench`: links and hosts."""

    @property
    def unfit(self) -> set[str]:
        """The unfit hosts, or the site."""
        return unfit_of(self.findings)

    @property
    def fit(self) -> list[Host]:
        """The other hosts."""
        return [host for host in self.hosts if host.name not in self.unfit]

    def as_text(self, width: int | None = None) -> str:
        """A line for each host, then each finding with its remedy. Equal findings of several hosts are one.

        `width`: the columns of the terminal, if the text is for one; columns that do not fit are left out.
        """
        rows = (
            _table(self.hosts, self.measurements, self.findings, width or sys.maxsize) if self.hosts else []
        )
        lines = [*rows, *_explained(self.findings), "", summary(self.hosts, self.findings)]
        text = "".join(f"{harmless(line)}\n" for line in lines)
        return f"{self.measured.text}\n{text}" if self.measured else text

    def as_json(self) -> dict[str, Any]:
        """The same for programs, with every single finding, not folded."""
        return {
            "fit": not self.unfit,
            "launcher": self.launcher,
            "hosts": [
                {"name": host.name, "slots": host.slots, "fit": host.name not in self.unfit}
                | _host_json(self.measurements.hosts.get(host.name))
                for host in self.hosts
            ],
            "findings": [asdict(finding) for finding in self.findings],
            **(self.measured.as_json if self.measured else {}),
        }


def examined(
    inventory: Inventory, launcher: LauncherName, rule: SlotRule | None, site: Sequence[Finding]
) -> Checkup:
    """Measure the hosts and judge them. `rule`: of `--slots`; `site`: findings about their Slurm site."""
    hosts = inventory.hosts
    place_ranks(hosts, LaunchSpec(job="", launcher=launcher))
    with contextlib.closing(Cluster(hosts, inventory.open_pipe)) as cluster:
        measurements = ask_hosts(cluster)
    uncounted: list[Finding] = []
    if rule:
        facts = {name: measured.facts for name, measured in measurements.hosts.items()}
        hosts, errors = counted_slots(hosts, facts, rule)
        uncounted = [of_error(name, error) for name, error in errors.items()]
    findings = (*site, *uncounted, *judge(hosts, measurements, launcher))
    return Checkup(launcher, findings, hosts, measurements)


def _with_bench(checkup: Checkup, inventory: Inventory, python: str, runs: Path) -> Checkup:
    """The same with links and hosts measured, each as a job on the hosts that are fit."""
    from .command_bench import measure

    measured = measure(inventory, checkup.fit, checkup.launcher, python, runs)
    return replace(checkup, findings=(*checkup.findings, *measured.findings), measured=measured)


def _has_hosts(slurm: str) -> bool:
    """Whether Slurm can give hosts: for options of salloc, or from the allocation of this process."""
    return slurm != THIS_ALLOCATION or "SLURM_JOB_ID" in os.environ
