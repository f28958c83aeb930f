"""The known keys of hosts, and the keys to log in with, as in ssh_config(5)."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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
from .ssh_config import Route, known_hosts


class UnknownHostKey(SSHException):
    """A host whose key is in no known_hosts file. `unread`: why a file could not be read."""

    def __init__(self, shown: str, unread: Mapping[str, str] | None = None) -> None:
        super().__init__(shown)
        self.unread = unread or {}


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every host key. paramiko gets no known keys: it would use only one key of each type."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        trusted = self._known.trusted
        if key in trusted:
            return
        if trusted:
            same = [known for known in trusted if known.get_name() == key.get_name()]
            raise BadHostKeyException(hostname, key, (same or trusted)[0])
        raise UnknownHostKey(f"{key.get_name()} {fingerprint(key)}", self._known.unread)


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:…, as ssh-keygen -l writes it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class KnownKeys(NamedTuple):
    """The keys of a host in known_hosts files."""

    trusted: tuple[paramiko.PKey, ...]
    unread: Mapping[str, str]
    """The files that could not be read, and why."""


def known_keys(route: Route) -> KnownKeys:
    """The keys that known_hosts files have for a host: by its address, or by its alias (HostKeyAlias).

    A line that cannot be read is passed over, as OpenSSH does.
    """
    host, lines, unread = route.known_as.lower(), list[tuple[str, str]](), dict[str, str]()
    for path in route.known_hosts_files:
        try:
            known = known_hosts(Path(path).read_text(errors="replace"))
        except OSError as error:
            unread[path] = error.strerror or str(error)
            continue
        lines += known.by_name.get(host, ())
        lines += [(kind, key) for name, kind, key in known.hashed if _is_hash_of(host, name)]
    keys = [_key_of(kind, _decoded(key)) for kind, key in lines]
    return KnownKeys(tuple(key for key in keys if key), unread)


def _is_hash_of(host: str, name: str) -> bool:
    with contextlib.suppress(ValueError, AssertionError):  # paramiko asserts that the salt has 20 bytes
        return paramiko.HostKeys.hash_host(host, name) == name
    return False


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
        """Every key; or why the key of a file cannot be used.

        A server accepts few tries (MaxAuthTries), so the keys that the configuration names come first: from
        the agent, which needs no password, else from their files. Then come the other keys of the agent, and
        last the files that ssh tries by default.
        """
        held = {key.asbytes(): key for key in self._agents_keys()}
        files = list[str]()
        for path in self._route.identity_files:
            named = [key for content in _public_keys(path) if (key := held.pop(content, None))]
            yield from named
            if not named and self._route.default_identities:
                files.append(path)
            elif not named and (private := _private_key(path)):
                yield private
        yield from () if self._route.identities_only else held.values()
        yield from filter(None, map(_private_key, files))

    def _agents_keys(self) -> Iterator[AgentKey]:
        if self._route.identity_agent:
            self._agent = KeyAgent(self._route.identity_agent)
            yield from self._agent.get_keys()


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


def _public_keys(path: str) -> Iterator[bytes]:
    """The public keys in an identity file, in the `.pub` file beside it, and of its private key."""
    yield from _key_in(Path(path))
    yield from _key_in(Path(f"{path}.pub"))
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


def _key_in(path: Path) -> Iterator[bytes]:
    """The public key in a file, if it has one."""
    with contextlib.suppress(OSError, binascii.Error, ValueError, IndexError):
        kind, encoded = path.read_text().split()[:2]
        content = base64.b64decode(encoded, validate=True)
        if paramiko.Message(content).get_text() == kind:
            yield content
