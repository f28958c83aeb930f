"""Prints the MB of each package of an image: `docker run --rm -i muster:cpu python3 - <docker/sizes.py`.

dpkg's own figure includes files that the image leaves out, and excludes bytecode compiled after the install.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

ROOTS = ("/etc", "/home", "/opt", "/usr", "/var")


def owners() -> dict[Path, str]:
    """Return the package of each installed file."""
    lists = Path("/var/lib/dpkg/info").glob("*.list")
    installed = ((Path(line), file) for file in lists for line in file.read_text().splitlines())
    return {
        path.resolve(): file.stem.partition(":")[0]
        for path, file in installed
        if path.is_file() and not path.is_symlink()
    }


def source_of(path: Path) -> Path:
    """Return the module that a bytecode file was compiled from; other paths unchanged."""
    if path.parent.name == "__pycache__":
        return path.parent.parent / (path.name.partition(".")[0] + ".py")
    return path


def measure() -> Counter[str]:
    """Return the bytes of each package."""
    package_of, total = owners(), Counter[str]()
    for root in ROOTS:
        for folder, _, names in os.walk(root):
            for path in (Path(folder, name) for name in names):
                if not path.is_symlink():
                    owner = package_of.get(source_of(path).resolve(), "(no package)")
                    total[owner] += path.stat().st_size
    return total


def main() -> None:
    """Print MB and package, the largest first; packages below 2 MB share one line."""
    total = measure()
    large = [(name, size) for name, size in total.most_common() if size >= 2e6]
    rest = sum(total.values()) - sum(size for _, size in large)
    lines = [*large, (f"({len(total) - len(large)} others)", rest), ("sum", sum(total.values()))]
    print("\n".join(f"{size / 1e6:8.1f}  {name}" for name, size in lines))


if __name__ == "__main__":
    main()
