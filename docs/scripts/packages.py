"""Draws the packages of deploy/ and train/ from their imports, into docs/images/packages-*.svg.

    python docs/scripts/packages.py

A package is a folder directly below deploy/, deploy/core/ or train/, or a single module there. All features
are one box, and their commands another. A package is drawn above every package that it imports from. The
picture leaves out the imports of features in the core, which tests/unit/test_imports.py lists one by one.
Packages that import each other, directly or through others, share a layer and have a dashed frame.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
TOPS = ("deploy", "train")
MOST_BESIDE = 8  # packages in a row; a layer with more packages has a second row

# Units of the drawing, as pixels at its natural size.
WIDTH, HEIGHT, ACROSS, BETWEEN, MARGIN = 112, 32, 20, 48, 16
STYLE = """
.package rect { fill: #eef2fb; stroke: #3f51b5; stroke-width: 1.2 }
.package.cycle rect { stroke-dasharray: 5 3 }
.package text { font: 600 13px system-ui, sans-serif; fill: #1a237e; text-anchor: middle }
path { fill: none; stroke: #8a93a6; stroke-width: 1.1; marker-end: url(#tip) }
#tip path { fill: #8a93a6; stroke: none; marker-end: none }
"""

Imports = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Package:
    """A box of the picture: its name and its upper left corner, in pixels."""

    name: str
    x: float
    y: float
    imports: frozenset[str]
    in_cycle: bool


def packages_of(top: Path) -> dict[str, list[Path]]:
    """Return the modules of each package of a top folder; `__init__` and `__main__` there are in none."""
    packages: dict[str, list[Path]] = {}
    for path in sorted(top.rglob("*.py")):
        if package := package_of(path.relative_to(top).with_suffix("").parts):
            packages.setdefault(package, []).append(path)
    return packages


def package_of(module: Sequence[str]) -> str:
    """Return the package of a module, from the parts of its name below the top folder."""
    first, *rest = module
    if first == "features":
        return "commands" if any(part.startswith("command") for part in rest) else first
    package = rest[0] if first == "core" and rest else first
    return "" if package.startswith("__") or package == "core" else package


def imports_of(top: Path) -> dict[str, frozenset[str]]:
    """Return the packages that each package of a top folder imports from."""
    packages = packages_of(top)
    return {
        package: frozenset(
            imported
            for path in paths
            for imported in _imported_packages(path, top)
            if imported in packages and imported != package
            if not (imported == "features" and path.relative_to(top).parts[0] == "core")
        )
        for package, paths in packages.items()
    }


def _imported_packages(path: Path, top: Path) -> set[str]:
    """Return the package in every relative or absolute import of a module."""
    folder = (top.name, *path.relative_to(top).parts[:-1])
    names: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            names += [(*module, alias.name) for alias in node.names]
    absolute = [name[1:] if name[0] == "muster" else name for name in names]
    return {package_of(name[1:]) for name in absolute if name[0] == top.name and len(name) > 1}


def reachable(imports: Imports) -> dict[str, set[str]]:
    """Return, for each package, every package that it imports from, directly or through others."""
    closure = {package: set(below) for package, below in imports.items()}
    for through in imports:
        for package, below in closure.items():
            if through in below:
                closure[package] = below | closure[through]
    return closure


def layers_of(imports: Imports) -> list[list[str]]:
    """Return the layers from the ground up: each package is above all packages that it imports from.

    Packages that reach each other share a layer. The packages of a layer are in alphabetical order.
    """
    closure = reachable(imports)
    group = {
        package: min([package, *(other for other in below if package in closure[other])])
        for package, below in closure.items()
    }
    below: dict[str, set[str]] = {name: set() for name in group.values()}
    for package, name in group.items():
        below[name] |= {group[other] for other in closure[package]} - {name}
    level: dict[str, int] = {}
    for name in sorted(below, key=lambda package: len(below[package])):
        level[name] = 1 + max((level[other] for other in below[name]), default=-1)
    layers: list[list[str]] = [[] for _ in range(1 + max(level.values(), default=-1))]
    for package in sorted(imports):
        layers[level[group[package]]].append(package)
    return layers


def drawn_arrows(imports: Imports) -> list[tuple[str, str]]:
    """Return the imports without those that a longer path implies: a > c is left out beside a > b > c."""
    closure = reachable(imports)
    arrows = []
    for package in sorted(imports):
        for below in sorted(imports[package]):
            others = imports[package] - {below}
            ways = {way for way in others if package not in closure[way] and way not in closure[below]}
            if not any(below in closure[way] for way in ways):
                arrows.append((package, below))
    return arrows


def place(top: Path) -> list[Package]:
    """Return the boxes of a top folder, highest layer first, each row centred."""
    imports = imports_of(top)
    closure = reachable(imports)
    rows = [
        layer[start : start + MOST_BESIDE]
        for layer in reversed(layers_of(imports))
        for start in range(0, len(layer), MOST_BESIDE)
    ]
    rows = _untangled(rows, imports)
    widest = max((len(row) for row in rows), default=0)
    return [
        Package(
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


def draw(top: Path) -> str:
    """Return the picture of a top folder as SVG."""
    packages = {package.name: package for package in place(top)}
    width = max((package.x for package in packages.values()), default=0) + WIDTH + MARGIN
    height = max((package.y for package in packages.values()), default=0) + HEIGHT + MARGIN
    arrows = drawn_arrows({name: package.imports for name, package in packages.items()})
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img">',
            f"<title>The packages of {top.name}/ and their imports</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#ffffff"/>',
            *(_arrow(packages[above], packages[below]) for above, below in arrows),
            *map(_box, packages.values()),
            "</svg>\n",
        ]
    )


def _arrow(above: Package, below: Package) -> str:
    x1, y1 = above.x + WIDTH / 2, above.y + HEIGHT
    x2, y2 = below.x + WIDTH / 2, below.y
    if y2 < y1:  # a package of the same layer, or of a cycle: from side to side
        y1, y2 = above.y + HEIGHT / 2, below.y + HEIGHT / 2
        x1, x2 = (x1 + WIDTH / 2, x2 - WIDTH / 2) if x1 < x2 else (x1 - WIDTH / 2, x2 + WIDTH / 2)
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"/>'


def _box(package: Package) -> str:
    middle, kind = package.x + WIDTH / 2, "package cycle" if package.in_cycle else "package"
    imports = ", ".join(sorted(package.imports)) or "no other package"
    return (
        f'<g class="{kind}"><title>{escape(package.name)} imports from: {escape(imports)}</title>'
        f'<rect x="{package.x:g}" y="{package.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{middle:g}" y="{package.y + 21:g}">{escape(package.name)}</text></g>'
    )


def pictures() -> dict[Path, str]:
    """Return every picture that this script makes, by path."""
    return {IMAGES / f"packages-{top}.svg": draw(ROOT / top) for top in TOPS}


def main() -> None:
    """Write the pictures."""
    for path, picture in pictures().items():
        path.write_text(picture)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
