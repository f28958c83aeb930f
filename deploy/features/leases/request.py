"""Requests about the leases of a host's GPUs."""

from __future__ import annotations

from ...core.connect.requests.request import Nothing, Request
from .messages import HostLeases, Lease

LEASE = Request("lease", Lease)
LEASE_END = Request("lease_end", Nothing)
LEASES = Request("leases", HostLeases)
