"""The keys to log in with, as in ssh_config(5): files, certificates, and those of an agent for keys."""

from __future__ import annotations

import base64
import binascii
import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.ssh_exception import AuthenticationException, PasswordRequiredException, SSHException

from ...text.text import count
from .ssh_config import Route

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
