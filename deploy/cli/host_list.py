"""`muster hosts add` and `hosts scan`: make the hosts file from the user's machines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.durable import write_atomically
from ..common.os_errors import explain
from ..common.users import home
from ..connect.opener import config_beside, pythons_beside
from ..console.text import count
from ..errors import UnfitError, UsageError
from ..hosts import hostfile
from ..hosts.hostfile import Host
from ..hosts.hostfile_edit import appended, lines_of, without_local
from ..hosts.slots import slot_rule
from ..roster import candidates, report
from ..roster.additions import Additions, ScannedHost, additions
from ..roster.candidates import Candidate
from ..roster.sources import aliases, load_inventory
from .command import Command, Exit, flag
from .shared import HOSTS_ALSO, HOSTS_FILE, JSON, NEW_HOSTS, PYTHON, SLOTS, write_json


@dataclass(frozen=True)
class RosterOptions(Command):
    """The flags of a command that reads and extends the hosts file."""

    name: tuple[str, ...] = flag(
        (),
        "a host, a range node[01-16], or a pattern 'gpu-*' of Host names of the SSH configuration",
        takes="positional",
    )
    hosts: str = flag(HOSTS_FILE, NEW_HOSTS, "FILE", also=HOSTS_ALSO)
    from_inventory: str = flag(
        "", "take the hosts of this Ansible inventory; names then choose hosts or groups of it", "FILE"
    )
    python: str = flag("", PYTHON, "PATH")


@dataclass(frozen=True)
class HostsAdd(RosterOptions):
    """Add hosts to the hosts file, with slots from what they have.

    Existing lines stay unchanged.

    muster hosts add 'node[01-16]'
    muster hosts add 'gpu-*'                          Host names of ~/.ssh/config
    muster hosts add --from-inventory inventory.ini   an Ansible inventory
    """

    slots: str = flag("auto", SLOTS.replace("(default: the hosts file's)", "(default: auto)"), "SLOTS")
    offline: bool = flag(False, "connect to no host; needs --slots NUMBER")
    dry_run: bool = flag(False, "print the lines, and change nothing")

    def run(self) -> None:
        """Ask the hosts, and write their lines."""
        rule, path = slot_rule(self.slots), Path(self.hosts)
        if self.offline and not isinstance(rule, int):
            raise UsageError(f"--offline cannot count --slots {self.slots}; give a number: --slots 8")
        if self.offline and self.python:
            raise UsageError(f"--python {self.python} has no effect with --offline; leave it out")
        if not (self.name or self.from_inventory):
            raise UsageError(
                "which hosts? muster hosts add NAME ...; muster hosts scan lists those of ~/.ssh/config"
            )
        before = path.read_bytes() if path.exists() else b""
        roster = _Roster(path, self.python)
        listed = [host for host in roster.listed(before) if not host.is_local]
        wanted, refused = roster.candidates(self.name, self.from_inventory)
        _require_remote(wanted)
        scanned = {} if self.offline else roster.scan([*listed, *(candidate.host for candidate in wanted)])
        made = additions(wanted, listed, scanned, rule, ask=not self.offline)
        made.refused |= refused
        lines = lines_of(made.entries)
        if lines:
            after = appended(without_local(before, self.hosts), lines)
            hostfile.parse(after.decode("utf-8", "surrogateescape").removeprefix("\ufeff"), self.hosts)
            if not self.dry_run:
                _replace(path, before, after)
        _show(made, lines, roster, before, dry=self.dry_run)
        if made.refused:
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class HostsScan(RosterOptions):
    """Show which hosts answer, and what they have.

    Without names these are the hosts of the hosts file and of the SSH configuration.
    """

    json: bool = flag(False, JSON)

    def run(self) -> None:
        path = Path(self.hosts)
        roster = _Roster(path, self.python)
        listed = list(roster.listed(path.read_bytes() if path.exists() else b""))
        names = [host.name for host in listed]
        if self.name or self.from_inventory:
            wanted, refused = roster.candidates(self.name, self.from_inventory)
            chosen = [candidate.host for candidate in wanted]
        else:
            others = candidates.of_patterns([alias for alias in roster.aliases if alias not in names], ())
            chosen, refused = [*listed, *(candidate.host for candidate in others)], {}
        if not chosen:
            raise UsageError(
                f"no hosts to ask: no {path}, and no Host in ~/.ssh/config; muster hosts scan NAME ..."
            )
        scanned = roster.scan(chosen)
        if self.json:
            write_json(report.as_json(chosen, scanned, names))
        else:
            sys.stdout.write(report.as_table(chosen, scanned, names, self.hosts))
        sys.stderr.write("".join(f"{each}: {reason}\n" for each, reason in refused.items()))
        if not any(seen.facts for seen in scanned.values()):
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class _Roster:
    """A hosts file, and the SSH configurations for its hosts and for others."""

    path: Path
    python: str

    @property
    def aliases(self) -> tuple[str, ...]:
        """The hosts of the configuration beside the hosts file, then those of the user's own."""
        folder = Path(home(), ".ssh")
        return tuple(dict.fromkeys((*self._beside(), *aliases(folder / "config", folder))))

    def _beside(self) -> tuple[str, ...]:
        config = config_beside(self.path)
        return aliases(config, config.parent) if config else ()

    def listed(self, content: bytes) -> tuple[Host, ...]:
        """The hosts of the file; none if it has only comments, or does not exist."""
        text = content.decode("utf-8-sig", "surrogateescape")
        if not hostfile.has_hosts(text):
            return ()
        return hostfile.parse(text, str(self.path))

    def candidates(self, names: Sequence[str], source: str) -> tuple[list[Candidate], dict[str, str]]:
        """The hosts that the user named, and the hosts of an inventory that are refused, with the reason."""
        if not source:
            return candidates.of_patterns(names, self.aliases), {}
        read = load_inventory(Path(source))
        return candidates.of_inventory(read, names, self.aliases, Path(source).name)

    def scan(self, hosts: Sequence[Host]) -> dict[str, ScannedHost]:
        """Ask hosts. Hosts that setup has not configured yet are reached by the user's SSH configuration."""
        from ..roster.scan import scan  # noqa: PLC0415  # 120 ms: the SSH library

        beside, config = {*self._beside()}, config_beside(self.path)
        pythons = pythons_beside(self.path)
        if sys.stderr.isatty():
            sys.stderr.write(f"asking {count(len(hosts), 'host')}\n")
        return scan(
            list({host.name: host for host in hosts}.values()),
            lambda name: config if name in beside else None,
            lambda name: self.python or pythons.get(name, ""),
        )


def _require_remote(wanted: Sequence[Candidate]) -> None:
    if local := [candidate.host.name for candidate in wanted if candidate.host.is_local]:
        raise UsageError(
            f"{local[0]} is this machine without SSH: write 'localhost slots=2' as the only line"
        )


def _replace(path: Path, before: bytes, after: bytes) -> None:
    """Replace the content in one step, with the mode of the file; for a link, replace its target."""
    target = path.resolve()
    try:
        if (target.read_bytes() if target.exists() else b"") != before:
            raise UsageError(f"{path}: changed meanwhile; try again")
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        write_atomically(target, after, mode)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {explain(error)}") from None


def _show(made: Additions, lines: Sequence[str], roster: _Roster, before: bytes, *, dry: bool) -> None:
    sys.stdout.write(report.of_additions(made, lines, str(roster.path), dry=dry))
    if lines and any(host.is_local for host in roster.listed(before)):
        sys.stdout.write("note: localhost must be the only host; its line is now a comment\n")
    if lines and config_beside(roster.path) and not dry:
        sys.stdout.write(
            f"next: muster setup --hosts {shlex.quote(str(roster.path))}, so that .muster/ has them too\n"
        )
