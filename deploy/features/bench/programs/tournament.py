"""The rounds in which every two players meet once, and nobody meets two at a time."""

from __future__ import annotations

Pair = tuple[int, int]


def rounds(players: int) -> list[list[Pair]]:
    """Return the rounds of a tournament of players 0 to `players` - 1, each a list of disjoint pairs.

    By the circle method: one player stays in its place, the others move around it by a place each round.
    An even number of players needs one round less than players; an odd number one for each, in which one
    player rests. The smaller number of a pair comes first.
    """
    circle: list[int | None] = [*range(players)]
    if players % 2:
        circle.append(None)  # whoever meets nobody rests
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return made


def one_at_a_time(schedule: list[list[Pair]]) -> list[list[Pair]]:
    """Return the same meetings with one pair in each round."""
    return [[pair] for each in schedule for pair in each]
