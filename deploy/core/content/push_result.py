"""The outcome of a push: a line for each host, and the bytes that left this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ..text.fold import HostMessage, fold_messages
from ..text.terminal import harmless_lines
from ..text.text import count, table


class PushOutcome(Protocol):
    """The outcome on a host. Its text says what the host has now, if there is no error."""

    error: str


Outcome = TypeVar("Outcome", bound=PushOutcome)


@dataclass
class PushResult(Generic[Outcome]):
    """The outcome of a push. `sent`: the bytes that left this machine. `notes`: lines for the user."""

    what: str
    hosts: dict[str, Outcome] = field(default_factory=dict)
    sent: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(outcome.error for outcome in self.hosts.values())

    def as_text(self, seconds: float) -> str:
        """The outcome on every host, and the bytes that left this machine."""
        messages = fold_messages(
            HostMessage(host, f"FAILED: {outcome.error}" if outcome.error else str(outcome))
            for host, outcome in self.hosts.items()
        )
        have = sum(not outcome.error for outcome in self.hosts.values())
        lines = [
            *table(message[:2] for message in messages),
            "",
            f"{self.what}: on {have} of {count(len(self.hosts), 'host')} after {seconds:.0f} s; "
            f"{self.sent / 1e6:.1f} MB left this machine",
            *self.notes,
        ]
        return harmless_lines("".join(f"{line}\n" for line in lines))
