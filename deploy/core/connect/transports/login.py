"""Who a host is and who logs in, as in ssh_config(5).

The keys of hosts: which are known, revoked, or certified. The keys to log in with: files, certificates, and
those of an agent for keys.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    PasswordRequiredException,
    SSHException,
)

from ...text.text import count
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


# After type and nonce, a certificate has the parts of the key that it certifies (PROTOCOL.certkeys).
_PARTS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}
_CERTIFICATE = "-cert-v01@openssh.com"
_PRIVATE, _MAGIC = "-----BEGIN OPENSSH PRIVATE KEY", b"openssh-key-v1\0"


class KeyAgent(AgentSSH):
    """The agent for keys at a socket; it has no keys if nothing answers there."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # the stub lacks what Agent uses
        except (OSError, SSHException):
            connection.close()

    def close(self) -> None:
        """Disconnect."""
        self._close()  # type: ignore[attr-defined]


class TooManyKeysError(AuthenticationException):
    """The server has ended the login before every key was offered (MaxAuthTries)."""


class RefusedError(AuthenticationException):
    """No key was accepted. `encrypted`: the files of keys that were not tried, for lack of a passphrase."""

    def __init__(self, reason: str, encrypted: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.encrypted = tuple(encrypted)


class EncryptedKey(PasswordRequiredException):
    """The file of a private key that needs a passphrase."""

    def __init__(self, path: str) -> None:
        super().__init__("private key file is encrypted")
        self.path = path


class Login:
    """Tries the keys of a route, one after the other: an authentication strategy of paramiko."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._agent: KeyAgent | None = None

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in; `AuthenticationException` with the reason why the last key was refused."""
        last: SSHException = AuthenticationException("there is no key to log in with")
        keys, tried, encrypted = self._keys(), 0, list[str]()
        try:
            for key in keys:
                if isinstance(key, SSHException):
                    last = key
                    encrypted += [key.path] if isinstance(key, EncryptedKey) else []
                    continue
                try:
                    more = transport.auth_publickey(self._route.user, key)
                except (AuthenticationException, EOFError) as error:
                    tried += 1
                    last = error if isinstance(error, SSHException) else AuthenticationException(str(error))
                    if not transport.is_active():  # as after the last of MaxAuthTries
                        if any(isinstance(other, paramiko.PKey) for other in keys):
                            raise TooManyKeysError(count(tried, "key")) from error
                        break
                else:
                    if more:
                        raise AuthenticationException(f"it also asks for {', '.join(more)}")
                    return
            raise RefusedError(str(last), encrypted) from last
        finally:
            if self._agent:
                self._agent.close()

    def _keys(self) -> Iterator[paramiko.PKey | SSHException]:
        """Every key, with its certificates first; or why the key of a file cannot be used.

        A server accepts few tries (MaxAuthTries), so the keys that the configuration names come first: from
        the agent, which needs no password, else from their files. Then come the other keys of the agent, and
        last the files that ssh tries by default.
        """
        certificates = [
            certificate for path in self._route.certificate_files if (certificate := _certificate(path))
        ]
        held = {key.asbytes(): key for key in self._agents_keys()}
        files = list[str]()
        for path in self._route.identity_files:
            named = [key for content in _public_keys(path) if (key := held.pop(content, None))]
            for key in named:
                yield from _with_certificates(key, certificates)
            if not named and self._route.default_identities:
                files.append(path)
            elif not named:
                yield from _of_file(path, certificates)
        for key in () if self._route.identities_only else held.values():
            yield from _with_certificates(key, certificates)
        for path in files:
            yield from _of_file(path, certificates)

    def _agents_keys(self) -> Iterator[AgentKey]:
        if self._route.identity_agent:
            self._agent = KeyAgent(self._route.identity_agent)
            yield from self._agent.get_keys()


def _of_file(path: str, certificates: list[tuple[bytes, str]]) -> Iterator[paramiko.PKey | SSHException]:
    """The private key of a file with its certificates, or why it cannot be used."""
    key = _private_key(path)
    if isinstance(key, paramiko.PKey):
        yield from _with_certificates(key, certificates)
    elif key:
        yield key


def _private_key(path: str) -> paramiko.PKey | SSHException | None:
    """The private key of a file, or why it cannot be used; None for a file that only has a public key."""
    if not Path(path).is_file() or any(_key_in(Path(path))):
        return None
    try:
        return paramiko.PKey.from_path(path)
    except TypeError:  # the library's error for a missing password
        return EncryptedKey(path)
    except (SSHException, OSError, ValueError) as error:
        return SSHException(f"{path} cannot be used: {getattr(error, 'strerror', None) or error}")
    except Exception as error:  # noqa: BLE001  # of paramiko or cryptography: a key of an unknown type
        return SSHException(f"{path} cannot be used: {type(error).__name__}")


def _with_certificates(key: Any, certificates: list[tuple[bytes, str]]) -> Iterator[Any]:
    """The key with each certificate that is for it (CertificateFile), then as it is."""
    plain = key.public_blob
    for certified, path in certificates:
        if certified == key.asbytes():
            key.load_certificate(path)
            yield key
    key.public_blob = plain
    yield key


def _certificate(path: str) -> tuple[bytes, str] | None:
    """The public key that a certificate is for, as on the wire, and its file."""
    for kind, content in _key_in(Path(path)):
        plain = kind.removesuffix(_CERTIFICATE)
        if plain == kind or plain not in _PARTS:
            continue
        message, key = paramiko.Message(content), paramiko.Message()
        message.get_string(), message.get_string()
        key.add_string(plain)
        for _ in range(_PARTS[plain]):
            key.add_string(message.get_string())
        return key.asbytes(), path
    return None


def _public_keys(path: str) -> Iterator[bytes]:
    """The public keys in an identity file, in the `.pub` file beside it, and of its private key."""
    for public in (Path(path), Path(f"{path}.pub")):
        yield from (content for _, content in _key_in(public))
    yield from _public_part(Path(path))


def _public_part(path: Path) -> Iterator[bytes]:
    """The public key in a file of a private key, which is not encrypted there (PROTOCOL.key)."""
    with contextlib.suppress(OSError, binascii.Error, ValueError, IndexError, struct.error):
        begin, *lines = path.read_text().split("-----\n", 1)
        if begin == _PRIVATE and lines:
            content = base64.b64decode(lines[0].partition("-----")[0])
            if content.startswith(_MAGIC):
                message = paramiko.Message(content[len(_MAGIC) :])
                for _ in ("cipher", "KDF", "options of the KDF"):
                    message.get_string()
                if message.get_int():
                    yield message.get_string()


def _key_in(path: Path) -> Iterator[tuple[str, bytes]]:
    """Type and content of the public key or certificate in a file, if it has one."""
    with contextlib.suppress(OSError, binascii.Error, ValueError, IndexError):
        kind, encoded = path.read_text().split()[:2]
        content = base64.b64decode(encoded, validate=True)
        if paramiko.Message(content).get_text() == kind:
            yield kind, content
