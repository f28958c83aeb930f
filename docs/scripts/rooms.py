"""Draws the rooms of deploy/ and train/ from their imports: docs/images/rooms-deploy.svg and rooms-train.svg.

    python docs/scripts/rooms.py

A room is a folder right below deploy/ or train/, or a module that lies there by itself. A room stands above
every room that it imports from. Rooms that import each other, directly or through others, share a floor and
have a dashed frame.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PACKAGES = ("deploy", "train")
MOST_BESIDE = 8  # rooms in a row; a floor with more rooms has a second row

# Units of the drawing, as pixels at its natural size.
WIDTH, HEIGHT, ACROSS, BETWEEN, MARGIN = 112, 32, 20, 48, 16
STYLE = """
.room rect { fill: #eef2fb; stroke: #3f51b5; stroke-width: 1.2 }
.room.cycle rect { stroke-dasharray: 5 3 }
.room text { font: 600 13px system-ui, sans-serif; fill: #1a237e; text-anchor: middle }
path { fill: none; stroke: #8a93a6; stroke-width: 1.1; marker-end: url(#tip) }
#tip path { fill: #8a93a6; stroke: none; marker-end: none }
"""

Imports = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Room:
    """A box of the picture: its name and its upper left corner, in pixels."""

    name: str
    x: float
    y: float
    imports: frozenset[str]
    in_cycle: bool


def rooms_of(package: Path) -> dict[str, list[Path]]:
    """Return the modules of each room of a package; its `__init__` and `__main__` are in no room."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if len(inside.parts) > 1:
            rooms.setdefault(inside.parts[0], []).append(path)
        elif not inside.stem.startswith("__"):
            rooms.setdefault(inside.stem, []).append(path)
    return rooms


def imports_of(package: Path) -> dict[str, frozenset[str]]:
    """Return the rooms that each room of a package imports from."""
    rooms = rooms_of(package)
    return {
        room: frozenset(
            imported
            for path in paths
            for imported in _imported_rooms(path, package)
            if imported in rooms and imported != room
        )
        for room, paths in rooms.items()
    }


def _imported_rooms(path: Path, package: Path) -> set[str]:
    """Return the first name below the package in every relative or absolute import of a module."""
    folder = (package.name, *path.relative_to(package).parts[:-1])
    names: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            names += [(*module, alias.name) for alias in node.names]
    absolute = [name[1:] if name[0] == "muster" else name for name in names]
    return {name[1] for name in absolute if name[0] == package.name and len(name) > 1}


def reachable(imports: Imports) -> dict[str, set[str]]:
    """Return, for each room, every room that it imports from, directly or through others."""
    closure = {room: set(below) for room, below in imports.items()}
    for through in imports:
        for room, below in closure.items():
            if through in below:
                closure[room] = below | closure[through]
    return closure


def floors_of(imports: Imports) -> list[list[str]]:
    """Return the floors from the ground up: each room is above all rooms that it imports from.

    Rooms that reach each other share a floor. The rooms of a floor are in alphabetical order.
    """
    closure = reachable(imports)
    group = {
        room: min([room, *(other for other in below if room in closure[other])])
        for room, below in closure.items()
    }
    below: dict[str, set[str]] = {name: set() for name in group.values()}
    for room, name in group.items():
        below[name] |= {group[other] for other in closure[room]} - {name}
    level: dict[str, int] = {}
    for name in sorted(below, key=lambda room: len(below[room])):
        level[name] = 1 + max((level[other] for other in below[name]), default=-1)
    floors: list[list[str]] = [[] for _ in range(1 + max(level.values(), default=-1))]
    for room in sorted(imports):
        floors[level[group[room]]].append(room)
    return floors


def drawn_arrows(imports: Imports) -> list[tuple[str, str]]:
    """Return the imports without those that a longer path implies: a > c is left out beside a > b > c."""
    closure = reachable(imports)
    arrows = []
    for room in sorted(imports):
        for below in sorted(imports[room]):
            others = imports[room] - {below}
            ways = {other for other in others if room not in closure[other] and other not in closure[below]}
            if not any(below in closure[way] for way in ways):
                arrows.append((room, below))
    return arrows


def place(package: Path) -> list[Room]:
    """Return the boxes of a package, top floor first, each row centred."""
    imports = imports_of(package)
    closure = reachable(imports)
    rows = [
        floor[start : start + MOST_BESIDE]
        for floor in reversed(floors_of(imports))
        for start in range(0, len(floor), MOST_BESIDE)
    ]
    rows = _untangled(rows, imports)
    widest = max((len(row) for row in rows), default=0)
    return [
        Room(
            name=name,
            x=MARGIN + (column + (widest - len(row)) / 2) * (WIDTH + ACROSS),
            y=MARGIN + number * (HEIGHT + BETWEEN),
            imports=imports[name],
            in_cycle=name in closure[name],
        )
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    ]


def _untangled(rows: list[list[str]], imports: Imports) -> list[list[str]]:
    """Sort each row by the positions of its neighbours, downwards and upwards, so that fewer arrows cross."""
    users = {name: {other for other in imports if name in imports[other]} for name in imports}
    for sweep in range(6):
        seen: dict[str, float] = {}
        neighbours: Mapping[str, set[str] | frozenset[str]] = imports if sweep % 2 else users
        for row in reversed(rows) if sweep % 2 else rows:
            at = {name: column - len(row) / 2 for column, name in enumerate(row)}
            near = {name: [seen[other] for other in neighbours[name] if other in seen] for name in row}
            row.sort(key=lambda name: (sum(near[name]) / len(near[name]) if near[name] else at[name], name))
            seen |= {name: column - (len(row) - 1) / 2 for column, name in enumerate(row)}
    return rows


def draw(package: Path) -> str:
    """Return the picture of a package as SVG."""
    rooms = {room.name: room for room in place(package)}
    width = max((room.x for room in rooms.values()), default=0) + WIDTH + MARGIN
    height = max((room.y for room in rooms.values()), default=0) + HEIGHT + MARGIN
    arrows = drawn_arrows({name: room.imports for name, room in rooms.items()})
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img">',
            f"<title>The rooms of {package.name}/ and their imports</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#ffffff"/>',
            *(_arrow(rooms[above], rooms[below]) for above, below in arrows),
            *map(_box, rooms.values()),
            "</svg>\n",
        ]
    )


def _arrow(above: Room, below: Room) -> str:
    x1, y1 = above.x + WIDTH / 2, above.y + HEIGHT
    x2, y2 = below.x + WIDTH / 2, below.y
    if y2 < y1:  # a room of the same floor, or of a cycle: from side to side
        y1, y2 = above.y + HEIGHT / 2, below.y + HEIGHT / 2
        x1, x2 = (x1 + WIDTH / 2, x2 - WIDTH / 2) if x1 < x2 else (x1 - WIDTH / 2, x2 + WIDTH / 2)
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"/>'


def _box(room: Room) -> str:
    middle, kind = room.x + WIDTH / 2, "room cycle" if room.in_cycle else "room"
    imports = ", ".join(sorted(room.imports)) or "no other room"
    return (
        f'<g class="{kind}"><title>{escape(room.name)} imports from: {escape(imports)}</title>'
        f'<rect x="{room.x:g}" y="{room.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{middle:g}" y="{room.y + 21:g}">{escape(room.name)}</text></g>'
    )


def pictures() -> dict[Path, str]:
    """Return every picture that this script makes, by path."""
    return {IMAGES / f"rooms-{package}.svg": draw(ROOT / package) for package in PACKAGES}


def main() -> None:
    """Write the pictures."""
    for path, picture in pictures().items():
        path.write_text(picture)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
