"""What can go wrong in a process group; torch's own code expects a RuntimeError of each."""

from __future__ import annotations


class MpiBackendError(RuntimeError):
    """A collective that cannot be, was not, or will not be done; says which and why."""


class TimedOutError(MpiBackendError):
    """Another rank did not come in time."""


class MismatchError(MpiBackendError):
    """The ranks do not mean the same collective."""
