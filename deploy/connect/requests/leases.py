"""Requests about the leases of a host's GPUs."""

from __future__ import annotations

from ...hosts.leases import HostLeases, Lease
from .request import Nothing, Request

LEASE = Request("lease", Lease)
LEASE_END = Request("lease_end", Nothing)
LEASES = Request("leases", HostLeases)
