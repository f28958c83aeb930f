"""What `fab image.push` says. Pure."""

from __future__ import annotations

from .engine import Image
from .push import Outcome, Pushed


def as_text(image: Image, pushed: Pushed, seconds: float) -> str:
    """What became of every host, and what left this machine."""
    width = max(map(len, pushed.hosts))
    lines = [f"{host:<{width}}  {_outcome(one)}" for host, one in pushed.hosts.items()]
    have = sum(not one.error for one in pushed.hosts.values())
    lines += [
        "",
        f"{image.name} {image.id.removeprefix('sha256:')[:12]}: on {have} of {len(pushed.hosts)} hosts after "
        f"{seconds:.0f} s; {pushed.sent / 1e6:.1f} MB left this machine",
        "",
    ]
    return "\n".join(lines)


def _outcome(one: Outcome) -> str:
    if one.error:
        return f"FAILED: {one.error}"
    if one.had_it:
        return "has it already"
    layers = "1 layer" if one.layers == 1 else f"{one.layers} layers"
    return f"loaded; {layers} of it came, {one.size / 1e6:.1f} MB"
