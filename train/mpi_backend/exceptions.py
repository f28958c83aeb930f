"""The errors of the backend. Each is a RuntimeError, because torch's own code expects one."""

from __future__ import annotations


class MpiBackendError(RuntimeError):
    """A collective or a message failed, or cannot be done. The message names it and gives the reason."""


class TimedOutError(MpiBackendError):
    """Another rank did not take part before the time-out."""


class MismatchError(MpiBackendError):
    """The ranks called different collectives, or passed tensors of different sizes or types."""


def with_name(name: str, error: BaseException) -> BaseException:
    """Return `error` with the name of the collective `name` in front, as its callers get it."""
    kind = type(error) if isinstance(error, MpiBackendError) else MpiBackendError
    return kind(f"{name}: {error}")


def breaks_group(error: BaseException) -> bool:
    """Return whether the group is unusable: after all but a MismatchError some ranks may still be in MPI."""
    return not isinstance(error, MismatchError)
