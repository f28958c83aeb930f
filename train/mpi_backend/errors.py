"""What can go wrong in a process group; torch's own code expects a RuntimeError of each."""

from __future__ import annotations


class MpiBackendError(RuntimeError):
    """A collective that cannot be, was not, or will not be done; says which and why."""


class TimedOutError(MpiBackendError):
    """Another rank did not come in time."""


class MismatchError(MpiBackendError):
    """The ranks do not mean the same collective."""


def explained(name: str, error: BaseException) -> BaseException:
    """Return the error of the collective `name` as its callers get it."""
    kind = type(error) if isinstance(error, (MpiBackendError, ValueError)) else MpiBackendError
    return kind(f"{name}: {error}")


def breaks_group(error: BaseException) -> bool:
    """Whether it went wrong inside MPI; a ValueError is found before, on every rank."""
    return not isinstance(error, ValueError)
