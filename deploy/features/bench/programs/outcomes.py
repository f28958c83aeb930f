"""The outcome of an operation, from those of the ranks."""

from __future__ import annotations

from collections.abc import Sequence

RIGHT, WRONG, REFUSED, BROKEN = "right", "wrong", "refused", "broken"


def together(results: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the outcome of the operation from the results of the ranks, in rank order.

    It is REFUSED if every rank refused it. If some ranks refused it while others took part it is BROKEN: a
    training would have hung.
    """
    outcomes = {outcome for outcome, _ in results}
    if outcomes == {RIGHT}:
        return results[0]
    if outcomes == {REFUSED}:
        return results[0]
    rank = next(rank for rank, (outcome, _) in enumerate(results) if outcome != RIGHT)
    outcome, message = results[rank]
    return (WRONG if outcome == WRONG else BROKEN), f"rank {rank}: {message}"


def first_line(error: Exception) -> str:
    """Return a backend's message, without the C++ file and line that gloo puts before it."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.rpartition("] ")[2] if line.startswith("[") else line
