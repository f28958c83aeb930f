"""The output of `muster image push`. Pure."""

from __future__ import annotations

from ..console.fold import HostMessage, fold_messages
from ..console.text import count, table
from .engine import Image
from .push import ImagePushOutcome, ImagePushResult


def as_text(image: Image, pushed: ImagePushResult, seconds: float) -> str:
    """The outcome on every host, and the number of bytes that left this machine."""
    lines = table(
        message[:2]
        for message in fold_messages(
            HostMessage(host, _outcome(outcome)) for host, outcome in pushed.hosts.items()
        )
    )
    have = sum(not outcome.error for outcome in pushed.hosts.values())
    hosts = count(len(pushed.hosts), "host")
    lines += [
        "",
        f"{image.name} {image.id.removeprefix('sha256:')[:12]}: on {have} of {hosts} after {seconds:.0f} s; "
        f"{pushed.sent / 1e6:.1f} MB left this machine",
        *pushed.notes,
        "",
    ]
    return "\n".join(lines)


def _outcome(outcome: ImagePushOutcome) -> str:
    if outcome.error:
        return f"FAILED: {outcome.error}"
    if outcome.had_it:
        return "has it already"
    return f"loaded; {count(outcome.layers, 'layer')} transferred, {outcome.size / 1e6:.1f} MB"
