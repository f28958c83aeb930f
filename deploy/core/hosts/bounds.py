"""Upper bounds for texts, numbers and lists from a host: the types of answers and reports.

Each bound is above what an agent of ours sends, and far below what would fill this machine's memory.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from ..decode import AtMost, Between, Like, Parsed

MOST_GPUS = 1024  # of a host
MOST_HOSTS, MOST_RANKS = 4096, 1 << 20  # core/hosts/hostfile.py

# -- texts --
Text = Annotated[str, AtMost(1 << 16)]
"""A message, a command."""
Printed = Annotated[str, AtMost(1 << 18), Parsed(lambda text: text.encode(errors="surrogateescape"))]
"""Output of a program, with undecodable bytes as surrogates. Lines come in chunks of 64 KiB, with at most as
much before them (core/agent/rank.py)."""
JobId = Annotated[str, Like(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")]
"""It becomes a path on the driver."""
Name = Annotated[str, AtMost(256)]
"""The name of a host, user, job or program. It is only shown, never used as a path here."""
Path = Annotated[str, AtMost(4096)]
AbsolutePath = Annotated[str, Like(r"/[^\0\n]{0,4095}")]
Version = Annotated[str, Like(r"[\w.+!~-]{1,64}")]
Digest = Annotated[str, Like(r"[0-9a-f]{64}")]
DiffId = Annotated[str, Like(r"sha256:[0-9a-f]{64}")]
Address = Annotated[str, Like(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,15})?"), Parsed(ipaddress.ip_address)]
"""IPv4 or IPv6; its scope is the name of an interface."""
AddressOrName = Annotated[str, Like(r"[\w.:%-]{1,255}")]
"""An address, or the name that addr= gives."""
Interface = Annotated[str, Like(r"[^\s/]{1,15}")]

# -- numbers --
Bytes = Annotated[int, Between(0, 1 << 62)]
"""A size that is shown or compared, and never used to allocate memory."""
Count = Annotated[int, Between(0, 1 << 32)]
Number = Annotated[int, Between(-(1 << 62), 1 << 62)]
Port = Annotated[int, Between(1, 65535)]
Pid = Annotated[int, Between(1, 1 << 22)]
Rank = Annotated[int, Between(0, MOST_RANKS)]
Code = Annotated[int, Between(-64, 255)]
"""An exit code: 0 to 255, or minus the number of a signal."""
Seconds = Annotated[float, Between(0, 1e12)]
"""Seconds since the epoch, or of processor time."""
