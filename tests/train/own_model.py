"""The script of docs/how-to/own-model.md, and the changes that the page makes to it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-model.md"


def stages() -> list[str]:
    """Return the script as it is at first, and after each of the changes."""
    text = PAGE.read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text.partition("**1. ")[0], re.DOTALL)
    scripts = [script]
    for diff in re.findall(r"```diff\n(.*?)```", text, re.DOTALL):
        scripts.append(changed(scripts[-1], diff))
    return scripts


def changed(script: str, diff: str) -> str:
    """Apply a diff without line numbers, whose hunks are divided by a line `...`."""
    for hunk in re.split(r"(?m)^\.\.\.\n", diff):
        lines = [line if line.strip() else f" {line}" for line in hunk.splitlines(keepends=True)]
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert script.count(before) == 1, f"not once in the script:\n{before}"
        script = script.replace(before, after)
    return script
