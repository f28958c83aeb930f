"""Checks that a file holds exactly the expected OpenPGP key: `python3 -` runs it with FILE and FINGERPRINT.

It implements the part of RFC 9580 that public keys of version 4 need, so that no host needs GnuPG. apt trusts
every key in the file, so the file must hold no other key.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

PUBLIC_KEY = 6


def dearmor(content: bytes) -> bytes:
    """Return the bytes of a key, binary or in ASCII armor; ValueError for several armored blocks."""
    if not content.startswith(b"-----BEGIN PGP"):
        return content
    if content.count(b"-----BEGIN") != 1:
        raise ValueError("more than one block")
    body = content.replace(b"\r", b"").partition(b"\n\n")[2].partition(b"-----END")[0].splitlines()
    return base64.b64decode(b"".join(line for line in body if not line.startswith(b"=")))


def packets(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and body of each packet; ValueError where the rest is no packet of known length."""
    while content:
        tag, start, length = header(content)
        if len(content) < start + length:
            raise ValueError("not an OpenPGP key")
        yield tag, content[start : start + length]
        content = content[start + length :]


def header(content: bytes) -> tuple[int, int, int]:
    """Return a packet's tag, the offset of its body, and the length of the body."""
    if len(content) < 6 or not content[0] & 0x80:
        raise ValueError("not an OpenPGP key")
    if not content[0] & 0x40:  # the older format
        width = 1 << (content[0] & 0x03)
        if width == 8:
            raise ValueError("a packet without a length")
        return (content[0] >> 2) & 0x0F, 1 + width, int.from_bytes(content[1 : 1 + width], "big")
    tag, length = content[0] & 0x3F, content[1]
    if length < 192:
        return tag, 2, length
    if length < 224:
        return tag, 3, ((length - 192) << 8) + content[2] + 192
    if length == 255:
        return tag, 6, int.from_bytes(content[2:6], "big")
    raise ValueError("a packet in parts")


def fingerprints(content: bytes) -> list[str]:
    """Return the fingerprint of each primary key (not of subkeys): 40 hexadecimal digits in capitals."""
    keys = [body for tag, body in packets(dearmor(content)) if tag == PUBLIC_KEY]
    if not keys or any(body[:1] != b"\x04" for body in keys):
        raise ValueError("not a public key of version 4")
    framed = [b"\x99" + len(body).to_bytes(2, "big") + body for body in keys]
    return [hashlib.sha1(packet, usedforsecurity=False).hexdigest().upper() for packet in framed]


def main() -> int:
    """Compare the key in a file with an expected fingerprint."""
    path, expected = sys.argv[1], sys.argv[2].replace(" ", "").upper()
    try:
        actual = " and ".join(fingerprints(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        actual = str(error)
    if actual == expected:
        return 0
    print(f"the key in {path} has the fingerprint {actual}, and {expected} was expected", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
