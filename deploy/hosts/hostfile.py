"""The hosts file: the only inventory. Strings in, hosts out; nothing here touches a network.

The grammar is that of an Open MPI hostfile, made strict::

    node1 slots=4                        # four ranks on node1
    node[01-16,20] slots=8 user=ml       # ranges: node01 ... node16, node20
    gpu-a port=2222 addr=10.0.0.7        # addr: its address on the data network

`slots` defaults to 1. The order of the file is the order of the ranks; the first host is the head.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import HostfileError, Problem, UsageError

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_HOSTS = 4096
MAX_SLOTS = 1024
# No name may begin with "-": it would reach ssh as an option.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*\$?")
_RANGE = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Host:
    """One machine: its cluster name, its number of ranks, and how it differs from the defaults."""

    name: str
    slots: int = 1
    user: str | None = None
    port: int | None = None
    addr: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether this is the driver's own machine, reached without SSH."""
        return self.name in LOCAL_NAMES


class _Invalid(ValueError):
    """A value that does not fit; the text says what was expected."""


def load(path: Path) -> tuple[Host, ...]:
    """Read and parse a hosts file; a missing, empty or binary one is an error, never a local run."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such hosts file; `muster init` writes one: a line a host") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory, not a hosts file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{path}: is not a text file; a hosts file has one line a host: 'node1 slots=4'")
    return parse(text, str(path))


def parse(text: str, source: str = "hosts.txt") -> tuple[Host, ...]:
    """Parse the text of a hosts file; `HostfileError` carries every problem of it."""
    hosts: list[Host] = []
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        tokens = _tokens(line)
        if not tokens:
            continue
        found, complaints = _parse_line(tokens)
        for host in found:
            if host.name in first_line:
                complaints.append((tokens[0][0], f"{host.name} is already on line {first_line[host.name]}"))
            first_line.setdefault(host.name, number)
        hosts += found
        problems += [Problem(source, number, column, complaint) for column, complaint in complaints]
    if len(hosts) > MAX_HOSTS:
        problems.append(Problem(source, 1, 1, f"{len(hosts)} hosts; at most {MAX_HOSTS} are supported"))
    if problems:
        raise HostfileError(problems)
    if not hosts:
        raise HostfileError([Problem(source, 1, 1, "no hosts; write one line a host: 'node1 slots=4'")])
    return tuple(hosts)


def select(hosts: Sequence[Host], include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """The hosts named by `include` (all, if empty) less those named by `exclude`: `node[1-3],gpu-a`."""
    wanted = _names(include, hosts, "--include") if include else {host.name for host in hosts}
    unwanted = _names(exclude, hosts, "--exclude") if exclude else set()
    chosen = tuple(host for host in hosts if host.name in wanted - unwanted)
    if not chosen:
        raise UsageError("--include and --exclude leave no host")
    return chosen


def _names(pattern: str, hosts: Sequence[Host], option: str) -> set[str]:
    try:
        names = {name for part in re.split(r",(?![^\[]*\])", pattern) for name in _expand(part.strip())}
    except _Invalid as invalid:
        raise UsageError(f"{option} {pattern}: {invalid}") from None
    known = {host.name for host in hosts}
    if unknown := sorted(names - known):
        raise UsageError(
            f"{option}: {', '.join(unknown)} not in the hosts file, which has {', '.join(sorted(known))}"
        )
    return names


def _tokens(line: str) -> list[tuple[int, str]]:
    """The words of a line before its comment, each with its column."""
    return [(match.start() + 1, match.group()) for match in re.finditer(r"\S+", line.split("#", 1)[0])]


def _parse_line(tokens: list[tuple[int, str]]) -> tuple[list[Host], list[tuple[int, str]]]:
    """The hosts of one line, and (column, complaint) for each thing wrong with it."""
    complaints: list[tuple[int, str]] = []
    (column, pattern), *settings = tokens
    if any(word == "=" for _, word in settings):
        return [], [(settings[0][0], "no spaces around '=': write slots=4")]
    names: list[str] = []
    try:
        names = [_host_name(name) for name in _expand(pattern)]
    except _Invalid as invalid:
        complaints.append((column, str(invalid)))
    values: dict[str, object] = {}
    for column, token in settings:
        key, equals, text = token.partition("=")
        try:
            if not equals or key not in _VALUES:
                raise _Invalid(f"expected slots=, user=, port= or addr=, got {token!r}")
            if key in values:
                raise _Invalid(f"{key} is given twice")
            values[key] = _VALUES[key](text)
        except _Invalid as invalid:
            complaints.append((column, str(invalid)))
    if complaints:
        return [], complaints
    addresses = values.pop("addr", None)
    if not isinstance(addresses, list):
        addresses = [None] * len(names)
    if len(addresses) != len(names):
        return [], [(tokens[0][0], f"{len(names)} hosts but {len(addresses)} addresses in addr=")]
    return [
        Host(name, addr=address, **values)  # type: ignore[arg-type]  # _VALUES gives each key its type
        for name, address in zip(names, addresses, strict=True)
    ], []


def _host_name(name: str) -> str:
    if "@" in name:
        user, _, host = name.partition("@")
        raise _Invalid(f"write '{host} user={user}', got {name!r}")
    if _NAME.fullmatch(name) or _is_address(name):
        return name
    if re.fullmatch(r"[^:]+:\d+", name):
        host, _, slots = name.partition(":")
        raise _Invalid(f"write '{host} slots={slots}', got {name!r}")
    raise _Invalid(f"a host name has letters, digits, '.', '_' and '-', got {name!r}")


def _is_address(text: str) -> bool:
    address, percent, scope = text.partition("%")
    if percent and not _NAME.fullmatch(scope):  # ipaddress takes anything there
        return False
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _expand(pattern: str) -> list[str]:
    """`node[01-03,7]` -> node01, node02, node03, node7; several brackets multiply."""
    pieces = _RANGE.split(pattern)
    if any("[" in text or "]" in text for text in pieces[::2]):
        raise _Invalid(f"a range is written node[01-16], got {pattern!r}")
    choices = [_numbers(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    size = 1
    for choice in choices:
        size *= len(choice)
        if size > MAX_HOSTS:
            raise _Invalid(f"{pattern} is more than {MAX_HOSTS} hosts")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(text: str) -> list[str]:
    """`01-03,7` -> 01, 02, 03, 7; the width of a range is that of its first number."""
    return [number for part in text.split(",") for number in _number_range(part)]


def _number_range(part: str) -> Iterator[str]:
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
    if not match:
        raise _Invalid(f"a range is written [01-16] or [1,3,5-7], got [{part}]")
    first, last = match.group(1), match.group(2) or match.group(1)
    if int(last) < int(first):
        raise _Invalid(f"a range goes upwards, got [{part}]")
    if int(last) - int(first) >= MAX_HOSTS:
        raise _Invalid(f"[{part}] is more than {MAX_HOSTS} hosts")
    return (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _integer(low: int, high: int, expectation: str) -> Callable[[str], object]:
    def parse_integer(text: str) -> int:
        # isdecimal() alone would take digits of other scripts.
        if not (text.isascii() and text.isdecimal() and len(text) < 9 and low <= int(text) <= high):
            raise _Invalid(f"{expectation}, got {text!r}")
        return int(text)

    return parse_integer


def _user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise _Invalid(f"user must be a login name, got {text!r}")
    return text


def _addresses(text: str) -> list[str]:
    found = _expand(text) if not _is_address(text) else [text]
    for address in found:
        if not (_is_address(address) or _NAME.fullmatch(address)):
            raise _Invalid(f"addr must be an IP address or a name, got {address!r}")
    return found


_VALUES: dict[str, Callable[[str], object]] = {
    "slots": _integer(1, MAX_SLOTS, "slots must be a positive integer"),
    "port": _integer(1, 65535, "port must be between 1 and 65535"),
    "user": _user,
    "addr": _addresses,
}
