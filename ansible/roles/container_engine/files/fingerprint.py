"""Whether a file has one OpenPGP key, the one expected: run by `python3 -` with FILE and FINGERPRINT.

Enough of RFC 9580 for a public key of version 4, so that no host needs GnuPG. apt trusts every key of the
file, so it must have no other.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

PUBLIC_KEY = 6


def dearmor(content: bytes) -> bytes:
    """The bytes of a key, also of one in ASCII armor; ValueError if there is more than one block of it."""
    if not content.startswith(b"-----BEGIN PGP"):
        return content
    if content.count(b"-----BEGIN") != 1:
        raise ValueError("more than one block")
    body = content.replace(b"\r", b"").partition(b"\n\n")[2].partition(b"-----END")[0].splitlines()
    return base64.b64decode(b"".join(line for line in body if not line.startswith(b"=")))


def packets(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and body of each packet; ValueError where the rest is none of a known length."""
    while content:
        tag, start, length = header(content)
        if len(content) < start + length:
            raise ValueError("not an OpenPGP key")
        yield tag, content[start : start + length]
        content = content[start + length :]


def header(content: bytes) -> tuple[int, int, int]:
    """A packet's tag, where its body starts, and how long that is."""
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
    """The fingerprint of each key (not of its subkeys), 40 hexadecimal digits in capitals."""
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
