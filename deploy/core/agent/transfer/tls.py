"""The certificate of a host for one push: the hosts of the push authenticate each other by it.

The driver makes it (core/content/transfer_state.py). It arrives over SSH and stays in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

NO_SSL = (
    "its Python has no module ssl, which encrypts what hosts send to each other: choose another Python with "
    "--python, or build this one with OpenSSL (libssl-dev, openssl-devel)"
)
WRONG_NAME = 62  # X509_V_ERR_HOSTNAME_MISMATCH


class Identity(NamedTuple):
    """The TLS contexts of this host for callers (`server`), and for hosts that it calls (`client`)."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def identity(texts: Mapping[str, str]) -> Identity:
    """The identity from PEM texts: `authority`, `certificate`, `key`. It accepts only hosts of the push."""
    try:
        import ssl  # it takes longer to load than all the rest, and a Python may lack it
    except ImportError:
        raise OSError(NO_SSL) from None
    made = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=texts["authority"])
        with _readable(texts["certificate"]) as certificate, _readable(texts["key"]) as key:
            context.load_cert_chain(certificate, key)
        context.verify_mode = ssl.CERT_REQUIRED
        made.append(context)
    server, client = made
    server.options |= ssl.OP_NO_TICKET
    return Identity(server, client)


@contextlib.contextmanager
def _readable(text: str) -> Iterator[str]:
    """A path at which a short text is read once: `ssl` takes paths alone, and a key belongs on no disk."""
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as file:
            file.write(text.encode())  # it fits into a pipe
        yield f"/proc/self/fd/{reader}"
    finally:
        os.close(reader)


def explain(error: OSError) -> str:
    """Why a connection failed."""
    code = getattr(error, "verify_code", None)
    if code == WRONG_NAME:
        return "another host of this push answers there"
    if code is not None:
        why = getattr(error, "verify_message", code)
        return f"another machine answers there: its certificate is not of this push ({why})"
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):  # an ssl.SSLError
        return f"no answer in TLS as a host of this push gives it ({reason.replace('_', ' ').lower()})"
    return error.strerror or str(error)
