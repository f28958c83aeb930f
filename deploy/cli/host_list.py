"""`muster hosts add` and `hosts scan`: the hosts file, from the machines that a user has."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json import dumps
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
from ..roster import candidates, inventory, report
from ..roster.additions import Additions, Seen, additions
from ..roster.candidates import Candidate
from ..roster.ssh_aliases import aliases
from .command import Exit, command
from .shared import HELP, SLOTS, explained

_HELP = {
    "hosts": HELP["hosts"],
    "name": "a host, a range node[01-16], or a pattern 'gpu-*' of Host names of the SSH configuration",
    "from-inventory": "take the hosts of this Ansible inventory; names then choose hosts or groups of it",
    "python": HELP["python"],
}


@command(
    words=("name",),
    iterable=["name"],
    help={
        **_HELP,
        "slots": SLOTS.replace("(default: the hosts file's)", "(default: auto)"),
        "offline": "ask no host; with --slots NUMBER",
        "dry-run": "print the lines, and change nothing",
    },
)
def add(  # noqa: PLR0917  # a flag for each parameter
    name: Iterable[str] | None = None,
    hosts: str = "hosts.txt",
    from_inventory: str = "",
    slots: str = "auto",
    offline: bool = False,
    dry_run: bool = False,
    python: str = "",
) -> None:
    """Add hosts to the hosts file, with slots from what they have. What is in the file stays as it is.

    muster hosts add 'node[01-16]'
    muster hosts add 'gpu-*'                          Host names of ~/.ssh/config
    muster hosts add --from-inventory inventory.ini   all hosts of an Ansible inventory
    """
    with explained():
        rule, words, path = slot_rule(slots), list(name or ()), Path(hosts)
        if offline and not isinstance(rule, int):
            raise UsageError(f"--offline cannot count --slots {slots}; give a number: --slots 8")
        if offline and python:
            raise UsageError(f"--python {python} is for hosts that are asked, and --offline asks none")
        if not (words or from_inventory):
            raise UsageError(
                "which hosts? muster hosts add NAME ...; muster hosts scan lists those that ssh knows"
            )
        before = path.read_bytes() if path.exists() else b""
        place = _Place(path, python)
        listed = [host for host in place.listed(before) if not host.is_local]
        wanted, refused = place.candidates(words, from_inventory)
        _require_remote(wanted)
        seen = {} if offline else place.scan([*listed, *(candidate.host for candidate in wanted)])
        made = additions(wanted, listed, seen, rule, ask=not offline)
        made.refused |= refused
        lines = lines_of(made.entries)
        dry = dry_run
        if lines:
            after = appended(without_local(before, hosts), lines)
            hostfile.parse(after.decode("utf-8", "surrogateescape").removeprefix("\ufeff"), hosts)
            if not dry:
                _replace(path, before, after)
        _show(made, lines, place, before, dry=dry)
        if made.refused:
            raise Exit(code=UnfitError.exit_status)


@command(words=("name",), iterable=["name"], help={**_HELP, "json": "for programs"})
def scan(  # a flag for each parameter
    name: Iterable[str] | None = None,
    hosts: str = "hosts.txt",
    from_inventory: str = "",
    json: bool = False,
    python: str = "",
) -> None:
    """Show which hosts answer, and what they have: those of the hosts file and of the SSH configuration."""
    with explained():
        words, path = list(name or ()), Path(hosts)
        place = _Place(path, python)
        listed = list(place.listed(path.read_bytes() if path.exists() else b""))
        if words or from_inventory:
            wanted, refused = place.candidates(words, from_inventory)
            chosen = [candidate.host for candidate in wanted]
        else:
            known = {host.name for host in listed}
            others = [word for word in place.aliases if word not in known]
            chosen, refused = (
                [*listed, *(candidate.host for candidate in candidates.of_words(others, ()))],
                {},
            )
        if not chosen:
            raise UsageError(
                f"no hosts to ask: no {hosts}, and no Host in ~/.ssh/config; muster hosts scan NAME ..."
            )
        seen = place.scan(chosen)
        names = [host.name for host in listed]
        if json:
            sys.stdout.write(dumps(report.as_json(chosen, seen, names), indent=2) + "\n")
        else:
            sys.stdout.write(report.as_table(chosen, seen, names, hosts))
        sys.stderr.write("".join(f"{each}: {reason}\n" for each, reason in refused.items()))
        if not any(known.facts for known in seen.values()):
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class _Place:
    """A hosts file, and the SSH configurations for its hosts and for others."""

    path: Path
    python: str

    @property
    def aliases(self) -> tuple[str, ...]:
        """The hosts that the configuration beside the file names, then those of the user's own."""
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

    def candidates(self, words: Sequence[str], source: str) -> tuple[list[Candidate], dict[str, str]]:
        """The hosts that a user means, and those of an inventory that cannot be taken."""
        if not source:
            return candidates.of_words(words, self.aliases), {}
        read = inventory.load(Path(source))
        return candidates.of_inventory(read, words, self.aliases, Path(source).name)

    def scan(self, hosts: Sequence[Host]) -> dict[str, Seen]:
        """Ask hosts. One that setup has not configured yet is reached as the user's own ssh reaches it."""
        from ..roster.scan import scan  # noqa: PLC0415  # it loads the SSH library, and --help needs none

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
    """Put the new content into place at once, with the mode of the file; behind a link, of its target."""
    target = path.resolve()
    try:
        if (target.read_bytes() if target.exists() else b"") != before:
            raise UsageError(f"{path}: changed meanwhile; try again")
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        write_atomically(target, after, mode)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {explain(error)}") from None


def _show(made: Additions, lines: Sequence[str], place: _Place, before: bytes, *, dry: bool) -> None:
    sys.stdout.write(report.of_additions(made, lines, str(place.path), dry=dry))
    if lines and any(host.is_local for host in place.listed(before)):
        sys.stdout.write("note: localhost can only stand alone; its line is a comment now\n")
    if lines and config_beside(place.path) and not dry:
        sys.stdout.write(
            f"next: muster setup --hosts {shlex.quote(str(place.path))}, so that .muster/ knows them too\n"
        )
