"""The patterns of `.gitignore` and `.musterignore` mean what git says, and no pattern takes long."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.walk import LONGEST_PATTERN, MOST_PATTERNS, Ignored, IgnoreFiles

# Not in it: `a**/b`, of which git matches more than gitignore(5) says; `[[:alpha:]]`, and an open bracket.
ATOMS = (
    *("a", "b", "ab", "*", "?", "[a]", "[!a]", "[^b]", "[a-c]", "\\a", "\\*", "/", "/", "/**/", "!", "#"),
    *("]", "[]a]", "\\ ", "c*", "*a*b", "-", "[a-]", "[!]b]", "\\!", "\\#", ".", "*.", "[*]", "[?a]", " "),
)
NAMES = (
    *("a", "b", "ab", "c", "abc", "aab", "*", "[a", "!a", "#a", "a b", " a", "a ", "]", "-", "z", "a.b"),
    *("\\", "?", "A", "ba", "aXb", "[]", "new\nline"),
)


def ignored_by(root: Path, patterns: str) -> IgnoreFiles:
    (root / "ignored").write_bytes(patterns.encode())
    return IgnoreFiles(root, "ignored", follow_links=False)


def said_by_git(root: Path, patterns: str, paths: list[str]) -> dict[str, bool]:
    (root / ".git" / "info" / "exclude").write_text(patterns)
    argv = ["git", "-C", str(root), "-c", "core.excludesFile=", "check-ignore", "--no-index"]
    asked = "".join(f"{path}\0" for path in paths).encode()
    done = subprocess.run([*argv, "-z", "-v", "-n", "--stdin"], input=asked, capture_output=True, check=False)
    fields = done.stdout.decode().split("\0")[:-1]
    rows = [fields[place : place + 4] for place in range(0, len(fields), 4)]
    return {path: bool(pattern) and not pattern.startswith("!") for _, _, pattern, path in rows}


@pytest.mark.parametrize("seed", range(4))
def test_random_patterns_leave_out_what_git_leaves_out(seed: int, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    draw = random.Random(seed)  # noqa: S311
    for _ in range(20):
        lines = ["".join(draw.choices(ATOMS, k=draw.randint(1, 5))) for _ in range(draw.randint(1, 4))]
        patterns = "\n".join(
            draw.choice(("", "/**", "**/")) + line + draw.choice(("", "/")) for line in lines
        )
        paths = sorted({"/".join(draw.choices(NAMES, k=draw.randint(1, 4))) for _ in range(60)})
        ignored = ignored_by(tmp_path, patterns)
        expected = said_by_git(tmp_path, patterns, paths)
        assert {path: ignored.has(path) for path in paths} == expected, patterns


def test_what_is_in_an_ignored_folder_cannot_be_taken_back_by_itself(tmp_path: Path) -> None:
    ignored = ignored_by(tmp_path, "docs/\n!docs/keep.md\nlib/*\n!lib/keep.md\n")
    assert [ignored.has(path) for path in ("docs/keep.md", "lib/keep.md", "lib/a")] == [True, False, True]


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 40 + "*b",
        "**/a/" * 40 + "b",
        "*" * 900,
        "[a-z]*" * 40 + "1",
        "?*" * 60 + "b",
        "/*a/**" * 40 + "/b",
    ],
)
def test_no_pattern_takes_long(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / ("a" * 200)).touch()
    (tmp_path / ".musterignore").write_text(f"{pattern}\n")
    began = time.process_time()
    deep = "/".join(["a"] * 1000)
    IgnoreFiles(tmp_path, ".musterignore", follow_links=True).has(deep)
    scan(tmp_path)
    assert time.process_time() - began < 10  # pathspec would take longer than anybody lives


def test_more_patterns_than_any_project_has_are_refused_before_they_are_read() -> None:
    with pytest.raises(UsageError, match=r"x: more than 2000 lines of patterns"):
        Ignored.of("a\n" * (MOST_PATTERNS + 1), "x")
    with pytest.raises(UsageError, match=r"x:2:1: a pattern of more than 1000 characters"):
        Ignored.of("a\n" + "*a" * LONGEST_PATTERN, "x")
