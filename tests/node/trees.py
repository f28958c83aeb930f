"""Machines as text: a file of tests/golden/gpus is a tree of files, and what is found on such a machine.

After a line that says what it is, `@ PATH` begins a file, with `+x` a program; `@ PATH -> TARGET` is a link,
and `@ PATH/` a folder. `{a,b}` in a path stands for each of them. `= findings` ends the tree.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden" / "gpus"
END = "= findings\n"


def unpack(text: str, root: Path) -> str:
    """Make the files of a machine below a root; returns what is to be found there."""
    tree, findings = text.split(END)
    for entry in re.split(r"^@ ", tree, flags=re.MULTILINE)[1:]:
        head, _, content = entry.partition("\n")
        words = head.split()
        for path in expanded(words[0]):
            place = Path(f"{root}{path}")
            if path.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if "->" in words:
                place.symlink_to(words[2])
            else:
                place.write_text(content)
                place.chmod(0o755 if "+x" in words else 0o644)
    return findings


def expanded(path: str) -> list[str]:
    """`/a/{b,c}` as `/a/b` and `/a/c`."""
    parts = re.split(r"\{([^}]*)\}", path)
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]
