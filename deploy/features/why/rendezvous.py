"""Why ranks do not meet in `init_process_group`: by the sizes, addresses and numbers that they gave. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.text.fold import fold, fold_names
from ...core.text.terminal import harmless
from ...core.text.text import count, span
from .descriptions import named
from .messages import Meeting, RecordedCall
from .positions import Rank

_OWN = ("localhost:", "127.", "[::1]:")
"""An address that begins so is that of each host itself."""


@dataclass(frozen=True)
class Unmet:
    """Why they do not meet, and the ranks that differ from most; none if there is no majority."""

    cause: str
    odd: tuple[int, ...] = ()


def unmet(ranks: Mapping[int, Rank], entries: Mapping[int, RecordedCall]) -> Unmet | None:
    """The reason in the same call of each rank; None if all fit together. `ranks`: those of the job."""
    meets = {rank: entry.meets for rank, entry in sorted(entries.items()) if entry.meets is not None}
    return (
        _different(ranks, "address", {rank: meeting.address for rank, meeting in meets.items()})
        or _different(ranks, "size", {rank: meeting.size for rank, meeting in meets.items()})
        or _own_address(ranks, meets)
        or _unlike_the_job(ranks, meets)
        or _same_number(meets)
    )


def _different(ranks: Mapping[int, Rank], what: str, values: Mapping[int, str | int]) -> Unmet | None:
    sides = fold((rank, value) for rank, value in values.items() if value not in {"", -1})
    if len(sides) < 2:
        return None
    verb = {"address": "meet at", "size": "expect"}[what]
    parts = [
        f"{named([ranks[number] for number in numbers])} {_conjugated(verb, numbers)} {_shown(value)}"
        for numbers, value in sides
    ]
    odd = [number for numbers, _ in sides[1:] for number in numbers]
    clear = len(sides[0][0]) > len(sides[1][0])
    cause = f"the ranks disagree on the {what} of the process group: {', '.join(parts)}"
    return Unmet(cause, tuple(sorted(odd if clear else values)))


def _conjugated(verb: str, ranks: Sequence[int]) -> str:
    first, *rest = verb.split()
    return " ".join([first if len(ranks) > 1 else f"{first}s", *rest])


def _shown(value: str | int) -> str:
    return count(value, "rank") if isinstance(value, int) else harmless(value)


def _own_address(ranks: Mapping[int, Rank], meets: Mapping[int, Meeting]) -> Unmet | None:
    """Ranks of several hosts that meet at `localhost`."""
    hosts = [*dict.fromkeys(ranks[rank].host for rank in meets)]
    address = next((meeting.address for meeting in meets.values()), "")
    if len(hosts) < 2 or not address.startswith(_OWN):
        return None
    each = f"{harmless(address)}, which is another address on each of {harmless(fold_names(hosts))}"
    return Unmet(f"they meet at {each}: use MASTER_ADDR and MASTER_PORT as Muster sets them")


def _unlike_the_job(ranks: Mapping[int, Rank], meets: Mapping[int, Meeting]) -> Unmet | None:
    size = next((meeting.size for meeting in meets.values()), -1)
    if size in {-1, len(ranks)}:
        return None
    return Unmet(f"the process group expects {count(size, 'rank')}, but the job has {len(ranks)}")


def _same_number(meets: Mapping[int, Meeting]) -> Unmet | None:
    numbers = fold((rank, meeting.rank) for rank, meeting in meets.items() if meeting.rank >= 0)
    same = [(mine, number) for mine, number in numbers if len(mine) > 1]
    if not same:
        return None
    parts = [f"{span(mine)} each as rank {number}" for mine, number in same]
    return Unmet(f"several ranks meet under the same number: {', '.join(parts)}")
