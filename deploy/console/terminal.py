"""Remote text, made safe for a terminal."""

from __future__ import annotations

# Control characters of remote output become pictures (␛): no host may drive this terminal.
_HARMLESS = {code: 0x2400 + code for code in range(32) if code != 9} | {127: 0x2421}


_HARMLESS |= dict.fromkeys(range(128, 160), 0xFFFD)


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey; undecodable bytes as replacement characters."""
    return text.translate(_HARMLESS).encode("utf-8", "replace").decode("utf-8", "replace")


def harmless_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(harmless, text.split("\n")))
