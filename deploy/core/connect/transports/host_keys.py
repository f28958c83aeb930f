"""The keys to trust for a host, from known_hosts files (sshd(8)), and the check of the key that it shows.

An unknown key is refused.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import BadHostKeyException, SSHException

from ...wire.files import read_regular
from .ssh_config import Route

_KEY_LIST_MAGIC = b"SSHKRL\n"  # of a binary list of revoked keys (PROTOCOL.krl)


class UnknownHostKey(SSHException):
    """A host whose key is in no known_hosts file. `unread`: why a file could not be read."""

    def __init__(self, shown: str, unread: Mapping[str, str] | None = None) -> None:
        super().__init__(shown)
        self.unread = unread or {}


class CertifiedHostKey(UnknownHostKey):
    """A host that only a certificate authority vouches for."""


class RevokedHostKey(SSHException):
    """A host that shows a key which was revoked."""


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every host key. paramiko gets no known keys: it would use only one key of each type."""

    def __init__(self, route: Route, known: KnownKeys) -> None:
        self._route, self._known = route, known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        known, listed = self._known, self._route.revoked_host_keys
        shown = f"{key.get_name()} {fingerprint(key)}"
        if key.asbytes() in known.revoked or (listed and is_in_list(key, Path(listed))):
            raise RevokedHostKey(shown)
        if key in known.trusted:
            return
        if known.trusted:
            same = [trusted for trusted in known.trusted if trusted.get_name() == key.get_name()]
            raise BadHostKeyException(hostname, key, (same or known.trusted)[0])
        raise (CertifiedHostKey if known.certified else UnknownHostKey)(shown, known.unread)


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:…, as ssh-keygen -l writes it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True)
class KnownKeys:
    """The known_hosts lines of a host."""

    trusted: tuple[paramiko.PKey, ...]
    revoked: frozenset[bytes] = frozenset()
    """Keys, as on the wire, of `@revoked` lines."""
    certified: bool = False
    """Whether a `@cert-authority` line is for this host."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The files that could not be read, and why."""


def known_keys(route: Route) -> KnownKeys:
    """The keys that known_hosts files have for a host: by its address, or by its alias (HostKeyAlias).

    A line that cannot be read is passed over, as OpenSSH does.
    """
    lines, unread = list[tuple[str, str, bytes]](), dict[str, str]()
    for path in route.known_hosts_files:
        try:
            lines += _lines_for(route.known_as, Path(path).read_text(errors="replace"))
        except OSError as error:
            unread[path] = error.strerror or str(error)
    revoked = frozenset(key for marker, _, key in lines if marker == "@revoked")
    trusted = [_key_of(kind, key) for marker, kind, key in lines if not marker and key not in revoked]
    return KnownKeys(
        trusted=tuple(key for key in trusted if key),
        revoked=revoked,
        certified=any(marker == "@cert-authority" for marker, _, _ in lines),
        unread=unread,
    )


def is_in_list(key: paramiko.PKey, revoked: Path) -> bool:
    """Whether the file of RevokedHostKeys has a key: a list of public keys, or a KRL, which ssh-keygen reads.

    A list that cannot be read revokes every key (ssh_config(5)).
    """
    try:
        content = read_regular(revoked)
    except OSError:
        return True
    if not content.startswith(_KEY_LIST_MAGIC):
        lines = content.decode(errors="replace").splitlines()
        return any(key.asbytes() == _decoded(field) for line in lines for field in line.split())
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Q", "-f", str(revoked), "/dev/stdin"],
            input=f"{key.get_name()} {key.get_base64()}\n".encode(),
            capture_output=True,
            check=False,
        )
    except OSError:
        return True
    return done.returncode != 0


def _lines_for(host: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """Marker or "", type and key of each line that is for this host."""
    by_name, others = _indexed(text)
    fitting = [line for line in others if _are_names_of(host.lower(), line.names)]
    for line in sorted([*by_name.get(host.lower(), ()), *fitting]):
        if key := _decoded(line.key):
            yield line.marker, line.kind, key


class _KnownHostsLine(NamedTuple):
    number: int
    marker: str
    names: str
    kind: str
    key: str


@lru_cache(maxsize=8)
def _indexed(text: str) -> tuple[Mapping[str, list[_KnownHostsLine]], list[_KnownHostsLine]]:
    """The lines of a file by each plain name, and those with patterns or hashed names.

    A large cluster has a line for each host: to match each host with each line took 2 ms for each of 256.
    """
    by_name: dict[str, list[_KnownHostsLine]] = {}
    others = []
    for number, text_line in enumerate(text.splitlines()):
        fields = text_line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3:
            continue
        line = _KnownHostsLine(number, marker, *fields[:3])
        if line.names.startswith("|") or {*"*?!"} & {*line.names}:
            others.append(line)
        else:
            for name in {*line.names.lower().split(",")}:
                by_name.setdefault(name, []).append(line)
    return by_name, others


def _are_names_of(host: str, names: str) -> bool:
    """Whether the names of a line match the host: a hashed name, or patterns; none with `!` may match."""
    if names.startswith("|1|"):
        with contextlib.suppress(ValueError, AssertionError):  # paramiko asserts that the salt has 20 bytes
            return paramiko.HostKeys.hash_host(host, names) == names
        return False
    fits = [name[:1] != "!" for name in names.lower().split(",") if _fits(host, name.removeprefix("!"))]
    return bool(fits) and all(fits)


def _fits(host: str, pattern: str) -> bool:
    """Whether a pattern of `*` and `?` matches the host; the brackets of [host]:port are literal."""
    return fnmatchcase(host, pattern.replace("[", "[[]"))  # never goes back over a star, as ".*" would


def _decoded(text: str) -> bytes:
    """The key of a line, or nothing."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _key_of(kind: str, content: bytes) -> paramiko.PKey | None:
    """A key, if paramiko supports its type."""
    with contextlib.suppress(UnknownKeyType, SSHException, ValueError):
        return paramiko.PKey.from_type_string(kind, content)
    return None
