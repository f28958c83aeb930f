"""The hosts file, which is the only inventory. Text in, hosts out; nothing here uses the network.

The grammar is that of an Open MPI hostfile, made strict::

    node1 slots=4                        # four ranks on node1
    node[01-16,20] slots=8 user=ml       # ranges: node01 ... node16, node20
    gpu-a port=2222 addr=10.0.0.7        # addr: its address on the data network

It also accepts the comments of Open MPI (`#`, `//` and `/* */`), spaces around `=`, and `max_slots`, which
changes nothing: no host gets more ranks than slots. `slots` defaults to 1. The order of the file is the order
of the ranks; the first host is the head.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import HostfileError, Problem, UsageError
from ..text.text import clip, nearest
from ..wire.files import open_regular

MOST_BYTES = 1 << 24
_LINE = r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"  # a character at which str.splitlines does not split
_COMMENT = re.compile(rf"(?:#|//){_LINE}*|/\*(?s:.*?)(?P<end>\*/|\Z)")
_KEY_AND_VALUE = re.compile(r"[^\s=]+(?:\s*=\s*(?:[^\s=]+(?![^\s=]|\s*=))?)?|\S+")
_UNDECODED = re.compile("[\udc80-\udcff]")  # by surrogateescape


def read_text(path: Path) -> str:
    """The text of a file. Bytes that are not UTF-8 are kept, because a comment may contain them."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such hosts file{_similar(path) or _remedy(str(path))}") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory, not a hosts file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; a hosts file has one line a host")
    if b"\0" in data:
        raise UsageError(f"{path}: is not a text file; a hosts file has one line a host: 'node1 slots=4'")
    return data.decode("utf-8-sig", "surrogateescape")


def _similar(path: Path) -> str:
    """`; did you mean ...?` with a file beside a missing one; empty if none has a similar name."""
    try:
        return nearest(path.name, [each.name for each in path.parent.iterdir() if each.is_file()])
    except OSError:
        return ""


def _remedy(path: str) -> str:
    """The remedy for a missing hosts file; its path may be a list of hosts, as mpirun accepts it."""
    parts = [re.fullmatch(r"([A-Za-z0-9_][\w.-]*)(?::(\d{1,4}))?", part) for part in path.split(",")]
    hosts = [part for part in parts if part]
    if len(hosts) < len(parts) or not (len(hosts) > 1 or hosts[0][2]):
        return "; `muster init` writes an example with one line for each host"
    line = f"{hosts[0][1]} slots={hosts[0][2] or 1}"
    names = ",".join(host[1] for host in hosts)
    return f"; write a file with one line for each host: '{line}'; --include {names} takes some of its hosts"


def without_comments(text: str, source: str) -> tuple[str, list[Problem]]:
    """The text with a space for each character of a comment, and a problem for a comment without an end."""
    problems = []

    def blank(comment: re.Match[str]) -> str:
        if comment["end"] == "":
            line, column = _position(text, comment.start())
            problems.append(Problem(source, line, column, "this comment has no end: write */ after it"))
        return "".join(part if part.isspace() else " " for part in comment[0])

    return _COMMENT.sub(blank, text), problems


def _position(text: str, index: int) -> tuple[int, int]:
    lines = (text[:index] + "x").splitlines()
    return len(lines), len(lines[-1])


def tokens_of(line: str) -> list[tuple[int, str]]:
    """The tokens of a line, each with its column. `slots = 4` is a single token."""
    return [(match.start() + 1, re.sub(r"\s*=\s*", "=", match[0])) for match in _KEY_AND_VALUE.finditer(line)]


def undecoded(line: str) -> tuple[int, str] | None:
    """The first byte of a line that is not UTF-8: its column and its number."""
    match = _UNDECODED.search(line)
    return (match.start() + 1, f"0x{ord(match[0]) - 0xDC00:02x}") if match else None


LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_SLOTS = 1024
MOST_PROBLEMS = 50
# No name may begin with "-": ssh would take it as an option.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*\$?")


@dataclass(frozen=True)
class Host:
    """One machine: its cluster name, its number of ranks, and how it differs from the defaults."""

    name: str
    slots: int = 1
    user: str | None = None
    port: int | None = None
    addr: str | None = None
    slots_by_default: bool = field(default=False, compare=False)
    """Whether the hosts file gives no slots= for it."""

    @property
    def is_local(self) -> bool:
        """Whether this is the driver's own machine, reached without SSH."""
        return self.name.lower() in LOCAL_NAMES


def load(path: Path) -> tuple[Host, ...]:
    """Read and parse a hosts file; a missing, empty or binary one is an error, never a local run."""
    return parse(read_text(path), str(path))


def parse(text: str, source: str = "hosts.txt") -> tuple[Host, ...]:
    """Parse the text of a hosts file; `HostfileError` has its problems, MOST_PROBLEMS at most."""
    hosts: list[Host] = []
    text, problems = without_comments(text, source)
    first: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line_hosts, complaints = _parse_line(line)
        for host in line_hosts:
            # Name servers and most programs make no difference between Node1 and node1.
            this = (number, host.name)
            if (earlier := first.setdefault(host.name.lower(), this)) is not this:
                spelled = f", as {earlier[1]}" if earlier[1] != host.name else ""
                column = len(line) - len(line.lstrip()) + 1
                complaints.append((column, f"{host.name} is already on line {earlier[0]}{spelled}"))
        hosts += line_hosts
        problems += [Problem(source, number, column, complaint) for column, complaint in complaints]
        if len(hosts) > MAX_HOSTS:
            problems.append(Problem(source, number, 1, f"more than {MAX_HOSTS} hosts; that is the limit"))
        if len(hosts) > MAX_HOSTS or len(problems) > MOST_PROBLEMS:
            break
    if len(problems) > MOST_PROBLEMS:
        last = problems[MOST_PROBLEMS - 1].line
        more = Problem(source, last, 1, "there are more mistakes from here on; fix these first")
        problems = [*problems[:MOST_PROBLEMS], more]
    if problems:
        raise HostfileError(problems)
    if not hosts:
        raise HostfileError([Problem(source, 1, 1, "no hosts; write one line a host: 'node1 slots=4'")])
    return tuple(hosts)


def select(hosts: Sequence[Host], include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """The hosts named by `include` (all, if empty) less those named by `exclude`: `node[1-3],gpu-a`."""
    wanted = named(include, hosts, "--include") if include else {host.name for host in hosts}
    unwanted = named(exclude, hosts, "--exclude") if exclude else set()
    chosen = tuple(host for host in hosts if host.name in wanted - unwanted)
    if not chosen:
        raise UsageError("--include and --exclude leave no host")
    return chosen


def named(pattern: str, hosts: Sequence[Host], option: str) -> set[str]:
    """The names of hosts in the value of an option; all of them must be in the hosts file."""
    names = expanded(pattern, option)
    listed = {host.name for host in hosts}
    if unknown := sorted(names - listed):
        digits = str.maketrans("", "", "0123456789")  # node9 is no mistyped node1
        similar = [name for name in listed if name.translate(digits) != unknown[0].translate(digits)]
        raise UsageError(
            f"{option}: {clip(', '.join(unknown), 1000)} not in the hosts file, which has "
            f"{clip(', '.join(sorted(listed)), 1000)}{nearest(unknown[0], similar)}"
        )
    return names


def expanded(pattern: str, option: str) -> set[str]:
    """The names of hosts in the value of an option: `node[1-3],gpu-a`."""
    try:
        names = all_names(pattern)
    except InvalidValue as invalid:
        raise UsageError(f"{option} {clip(pattern)}: {invalid}") from None
    if "" in names:
        raise UsageError(f"{option} {pattern}: a name between commas is missing")
    return names


def _parse_line(line: str) -> tuple[list[Host], list[tuple[int, str]]]:
    """The hosts of a line, and (column, complaint) for each mistake in it."""
    if byte := undecoded(line):
        return [], [(byte[0], f"the byte {byte[1]} is not UTF-8; outside of comments, names are ASCII")]
    tokens = tokens_of(line)
    if not tokens:
        return [], []
    (column, pattern), *settings = tokens
    values, complaints = _settings(settings)
    names: list[str] = []
    try:
        names = [_host_name(name, has_slots="slots" in values) for name in expand(pattern)]
    except InvalidValue as invalid:
        complaints.insert(0, (column, str(invalid)))
    if complaints:
        return [], complaints
    most = values.pop("max_slots", MAX_SLOTS)
    slots = values.get("slots", 1)
    if isinstance(most, int) and isinstance(slots, int) and most < slots:
        return [], [(column, f"max_slots={most} is below slots={slots}")]
    addresses = values.pop("addr", None)
    if not isinstance(addresses, list):
        addresses = [None] * len(names)
    if len(addresses) != len(names):
        return [], [(column, f"{len(names)} hosts but {len(addresses)} addresses in addr=")]
    has_none = "slots" not in values
    return [
        Host(name, addr=address, slots_by_default=has_none, **values)  # type: ignore[arg-type]  # _VALUES gives each key its type
        for name, address in zip(names, addresses, strict=True)
    ], []


def _settings(tokens: Sequence[tuple[int, str]]) -> tuple[dict[str, object], list[tuple[int, str]]]:
    """The value of each key of a line, and (column, complaint) for each mistake."""
    values: dict[str, object] = {}
    complaints: list[tuple[int, str]] = []
    for column, token in tokens:
        key, equals, text = token.partition("=")
        key = key.replace("max-slots", "max_slots")
        try:
            if not equals or key not in _VALUES:
                also = f"; write {_OTHER_NAMES[key]}={text}" if equals and key in _OTHER_NAMES else ""
                raise InvalidValue(f"expected slots=, user=, port= or addr=, got {token!r}{also}")
            if key in values:
                raise InvalidValue(f"{key} is given twice")
            values[key] = _VALUES[key](text)
        except InvalidValue as invalid:
            complaints.append((column, str(invalid)))
    return values, complaints


def _host_name(name: str, *, has_slots: bool) -> str:
    if "@" in name:
        user, _, host = name.partition("@")
        raise InvalidValue(f"write '{host} user={user}', got {name!r}")
    if _NAME.fullmatch(name) or _is_address(name):
        return name
    if re.fullmatch(r"[^:]+:\d+", name):
        host, _, number = name.partition(":")
        slots = (
            "" if has_slots or len(number) > 4 or int(number) > MAX_SLOTS else f" or '{host} slots={number}'"
        )
        raise InvalidValue(f"write '{host} port={number}'{slots}, got {name!r}")
    if name.endswith(".") and _NAME.fullmatch(name.rstrip(".")):
        raise InvalidValue(f"write '{name.rstrip('.')}', without the dot at the end, got {name!r}")
    raise InvalidValue(f"a host name has letters, digits, '.', '_' and '-', got {name!r}")


def _is_address(text: str) -> bool:
    address, percent, scope = text.partition("%")
    if percent and not _NAME.fullmatch(scope):  # ipaddress accepts any text as a scope
        return False
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _integer(low: int, high: int, expectation: str, too_high: str) -> Callable[[str], object]:
    def parse_integer(text: str) -> int:
        # isdecimal() alone would accept digits of other scripts.
        if not (text.isascii() and text.isdecimal()):
            raise InvalidValue(f"{expectation}, got {text!r}")
        if len(text) > 8 or int(text) > high:
            raise InvalidValue(f"{too_high}, got {text!r}")
        if int(text) < low:
            raise InvalidValue(f"{expectation}, got {text!r}")
        return int(text)

    return parse_integer


def _user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise InvalidValue(f"user must be a login name, got {text!r}")
    return text


def _addresses(text: str) -> list[str]:
    addresses = expand(text) if not _is_address(text) else [text]
    for address in addresses:
        if not (_is_address(address) or _NAME.fullmatch(address)):
            raise InvalidValue(f"addr must be an IP address or a name, got {address!r}")
    return addresses


_VALUES: dict[str, Callable[[str], object]] = {
    "slots": _integer(1, MAX_SLOTS, "slots must be a positive integer", f"slots is at most {MAX_SLOTS}"),
    "max_slots": _integer(1, 1 << 20, "max_slots must be a positive integer", "max_slots is too high"),
    "port": _integer(1, 65535, *["port must be between 1 and 65535"] * 2),
    "user": _user,
    "addr": _addresses,
}
# Other names that Open MPI has for these keys.
_OTHER_NAMES = {
    "cpu": "slots",
    "count": "slots",
    "username": "user",
    "user-name": "user",
    "user_name": "user",
}


# -- ranges in names --

MAX_HOSTS = 4096
MOST_NAMES = 4 * MAX_HOSTS  # of an option, where a host may be named twice
LONGEST_NAME = 253  # of the Domain Name System
_RANGE = re.compile(r"\[([^\[\]]*)\]")


class InvalidValue(ValueError):
    """An invalid value. The text names the expected one."""


def all_names(text: str) -> set[str]:
    """The names of `node[1-3],gpu-a`, MOST_NAMES at most."""
    names: set[str] = set()
    made = 0
    for pattern in _patterns(text):
        more = expand(pattern)
        names |= {*more}
        made += len(more)
        if made > MOST_NAMES:
            raise InvalidValue(f"more than {MOST_NAMES} names")
    return names


def _patterns(text: str) -> list[str]:
    """`node[1,3],gpu-a` -> node[1,3], gpu-a: split at the commas outside of brackets."""
    parts = [""]
    for piece in re.split(r"(\[[^\[\]]*\])", text):
        first, *more = piece.split(",") if not piece.startswith("[") else (piece,)
        parts[-1] += first
        parts += more
    return [part.strip() for part in parts]


def expand(pattern: str) -> list[str]:
    """`node[01-03,7]` -> node01, node02, node03, node7; several brackets multiply."""
    pieces = _RANGE.split(pattern)
    if any("[" in text or "]" in text for text in pieces[::2]):
        raise InvalidValue(f"a range is written node[01-16], got {clip(pattern)!r}")
    if sum(map(len, pieces[::2])) + len(pieces) // 2 > LONGEST_NAME:
        raise InvalidValue(f"a name has at most {LONGEST_NAME} characters, got {clip(pattern)!r}")
    choices = [_ranges(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
    size = 1  # known before a single name is made
    for choice in choices:
        if not isinstance(choice, str):
            size *= sum(last - first + 1 for first, last, _ in choice)
        if size > MAX_HOSTS:
            raise InvalidValue(f"{clip(pattern)} is more than {MAX_HOSTS} hosts")
    texts = ([choice] if isinstance(choice, str) else [*_numbers(choice)] for choice in choices)
    return ["".join(parts) for parts in itertools.product(*texts)]


def _ranges(text: str) -> list[tuple[int, int, int]]:
    """`01-03,7` -> (1, 3, 2), (7, 7, 1): first, last, and the width, which is that of the first number."""
    ranges: list[tuple[int, int, int]] = []
    size = 0
    for part in text.split(","):
        if size > MAX_HOSTS:
            break  # the caller refuses it
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not match:
            raise InvalidValue(f"a range is written [01-16] or [1,3,5-7], got [{clip(part)}]")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise InvalidValue(f"a range goes upwards, got [{part}]")
        if int(last) - int(first) >= MAX_HOSTS:
            raise InvalidValue(f"[{part}] is more than {MAX_HOSTS} hosts")
        ranges.append((int(first), int(last), len(first)))
        size += int(last) - int(first) + 1
    return ranges


def _numbers(ranges: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    for first, last, width in ranges:
        yield from (str(number).zfill(width) for number in range(first, last + 1))
