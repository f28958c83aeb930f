"""What a disk or a crash does to a file that is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def _cut(size: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: size(path.stat().st_size)])

    return damage


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("in the way")


def _unreadable(path: Path) -> None:
    """Root may read every file, but nothing can read a link to itself."""
    path.unlink()
    path.symlink_to(path)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": _cut(lambda size: 0),
    "one byte": _cut(lambda size: 1),
    "half": _cut(lambda size: size // 2),
    "one byte short": _cut(lambda size: size - 1),
    "a flipped bit": _flip,
    "longer": _lengthen,
    "a folder": _folder,
    "unreadable": _unreadable,
    "gone": Path.unlink,
}
"""Each changes a file that is in place."""
