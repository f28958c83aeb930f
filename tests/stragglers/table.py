"""The seeded stragglers and the balanced runs, each a phase of programs/phases.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("programs") / "phases.py"
PARTS = ("input", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Phase:
    """A phase, and the rank that is slow in it; None for a balanced one."""

    word: str
    slow: int | None = None

    @property
    def part(self) -> str:
        """The part of a step in which the rank is slow."""
        return self.word.partition(":")[0]


SEEDED = (
    *(Phase(f"{part}:{rank}", rank) for part in PARTS for rank in (0, 2)),
    *(Phase(f"{part}:1", 1) for part in PARTS),
    *(Phase(f"{part}:{rank}/ddp", rank) for part, rank in zip(PARTS, (2, 0, 1, 2), strict=True)),
)
BALANCED = (
    *(Phase(word) for word in ("balanced", "noise", "turns", "saves")),
    *(Phase(f"{word}/ddp") for word in ("balanced", "noise", "turns", "saves")),
)


def line_of(part: str) -> str:
    """`phases.py:44`: where a rank is slow in this part."""
    numbered = enumerate(PROGRAM.read_text().splitlines(), 1)
    return next(f"{PROGRAM.name}:{number}" for number, line in numbered if line.endswith(f"# {part}"))
