"""Refuses phrases that are not plain English, in messages, comments and pages: part of `make lint`.

    python .ci/phrases.py [FILE ...]    all files that git tracks, if none is named

The list grows when a reader finds another one. Of Python files only comments and strings are read.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
READ = {".py", ".md", ".yml", ".yaml", ".j2", ".sh", ".toml", ".html", ".txt"}
PHRASES = {
    r"nonsense": "protocol error, or what is wrong with it",
    r"\bfor ever\b": "forever, without end, indefinitely",
    r"\bmend(s|ed|ing)?\b": "fix, repair, correct",
    r"(is|are|was|were) told\b": "say who reports what",
    r"\b(no|any|some) agent sends\b": "protocol error",
    r"not over in time": "timed out",
    r"nobody reads it any more": "broken pipe",
    r"what has come is kept": "partial data is kept",
    r"the same command goes on": "run the command again to resume",
    r"\bis no (name|address|number|path) of\b": "is not a ...",
    r"\bno (name|place) (of|for) (an?|')": "not a ...; unexpected argument",
    r"had all of it|\bof it came\b": "already up to date; transferred",
    r"\btakes? turns\b": "share a core; more ranks than cores",
    r"\blackers?\b|\bgivers?\b": "missing_on, sources",
    r"a clock that nobody": "a monotonic clock",
    r"\brooms? of (the code|deploy|train)\b|\bfloors? (below|above)\b": "package, layer",
    r"nobody has (confirmed|told)": "is not pinned; is missing",
    r"\bin vain\b": "without success",
    r"\bthat nobody\b|\bnobody knows\b": "unused, unknown, unfinished; name who does not",
    r"\bwhat(ever)? (came|comes|has come) of\b": "the outcome of, the results of",
    r"\bg(ives?|ave) no answer\b": "does not answer",
    r"\bwants a login\b": "asks for a login",
    r"\bby itself\b": "on its own, alone, without options",
    r"(?<!there) is no (file|folder|path|program|range|rank|URL)\b": "is not a ...",
    r"\ba word or two\b|\bin a word\b": "briefly",
    r"\bnever heard of\b": "does not use",
    r"\bfor want of\b": "because ... is missing",
    r"\bat hand\b": "available",
    r"\btakes? (it|its|the \w+) along\b": "sends",
    r"\bas (it|they) likes?\b": "without limit",
    r"\bto be had\b": "available",
    r"\bsees to\b": "configures, handles",
    r"\bheed(s|ed)?\b": "apply, follow",
    r"\bas ever\b": "unchanged",
    r"\ba word about\b": "a message",
    r"\banew\b": "again",
    r"\b(stands?|stood) still\b": "stalls, makes no progress; did not run",
    r"\bt(ells?|old) (\w+ ){0,4}apart\b": "distinguishes",
    r"\bacts? upon\b": "uses",
}
"""A regular expression, without regard to case, and what to write instead."""
OWN = {".ci/phrases.py"}


def problems(path: Path, name: str) -> Iterator[str]:
    """One line for each phrase of a file that is on the list."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for number, line in _prose(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1):
        for pattern, better in PHRASES.items():
            if match := re.search(pattern, line, re.IGNORECASE):
                yield f"{name}:{number}: '{match.group()}': {better}"


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """The comments and strings of a Python file, line by line."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def tracked() -> list[str]:
    """The files that git tracks."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def main(names: Iterable[str]) -> int:
    """Print the problems; return the exit status."""
    lines = [
        line
        for name in names or tracked()
        if Path(name).suffix in READ and name not in OWN
        for line in problems(ROOT / name, name)
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
