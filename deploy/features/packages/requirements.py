"""Reads requirements before uv does, and refuses those that uv might build here.

A build runs the package's code on this machine, also in a dry run. uv's option --no-build does not prevent it
for a folder with a setup.py after -e, nor for packages of --no-binary.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...core.errors import Problem, UsageError
from ...core.wire.files import read_regular

MOST_FILES = 100
_INCLUDE = re.compile(r"(?:-[rc]|--(?:requirements?|constraints?)(?=[\s=]))[\s=]*(?P<file>.+)")
_EDITABLE = re.compile(r"(?:-e|--editable(?=[\s=]))[\s=]*(?P<target>.+)")
_NAMED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[^\]]*\])?\s*(?P<rest>.*)")
_ARCHIVE = re.compile(r"\.(zip|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma|zst|whl|egg)$", re.IGNORECASE)
# Keys of [project] that need no build, unless `dynamic` lists them: for a file, and for `-e .`.
_NEEDED = {"dependencies", "optional-dependencies", "requires-python"}
_STATIC = {"name", "version", *_NEEDED}
_SETTINGS = ("uv.toml", "pyproject.toml", "uv.lock")


def no_builds(name: str) -> str:
    """What to do about a package that has no wheel."""
    return (
        "nothing is built on this machine; make a wheel of it, on a host if it is compiled "
        f"(pip wheel {name} -w wheels/), and write --find-links wheels/ into the requirements"
    )


REMEDY = no_builds("NAME")


def files_of(file: Path) -> Iterator[tuple[Path, str]]:
    """The file and every file that it includes, with their texts; `UsageError` if one is unreadable."""
    seen: list[Path] = []
    yield from _files_of(file, seen)


def for_uv(file: Path) -> list[Path]:
    """What uv may read for these requirements: settings with an index, or a workspace with a lock."""
    return [folder / name for folder in file.resolve().parents for name in _SETTINGS]


def require_no_builds(file: Path) -> None:
    """`UsageError` with every line that names a folder, a repository or a source archive of this machine."""
    if file.name == "uv.lock":
        return  # its exported requirements are checked (bring.py)
    _require_wheels(file)
    base = file.parent  # paths in an included file are relative to it too
    problems = [problem for path, text in files_of(file) for problem in _problems(path, text, base)]
    if problems:
        raise UsageError("\n".join(map(str, problems)))


def _require_wheels(file: Path) -> None:
    """`UsageError` for settings of uv that let it build packages in spite of --no-build."""
    for path in for_uv(file):
        if path.name == "uv.lock":
            continue
        try:
            document = toml(read_regular(path).decode(errors="replace"))
        except (OSError, ValueError):
            continue  # uv names a damaged one
        settings = document if path.name == "uv.toml" else _table(document, "tool", "uv")
        if "no-binary-package" in settings or "no-binary" in _table(settings, "pip"):
            raise UsageError(f"{path}: remove no-binary: nothing is built on this machine")


def exported_problems(source: Path, text: str) -> list[str]:
    """The requirements exported from a uv.lock that uv might build here, as problems."""
    return [f"{source}: {problem.text}" for problem in _of_lines(source, text, source.parent)]


def toml(text: str) -> Mapping[str, Any]:
    """A TOML document; ValueError for any other text."""
    if sys.version_info >= (3, 11):
        import tomllib  # 3.10 has none
    else:
        import tomli as tomllib
    try:
        document: Mapping[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    return document


def _files_of(file: Path, seen: list[Path]) -> Iterator[tuple[Path, str]]:
    try:
        text = read_regular(file).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    seen.append(file.resolve())
    if len(seen) > MOST_FILES:
        raise UsageError(f"{file}: more than {MOST_FILES} files of requirements include each other")
    yield file, text
    if file.suffix in {".toml", ".lock"}:
        return
    for number, line in _lines(text):
        if included := _INCLUDE.fullmatch(_expanded(line)):
            if "://" in included["file"]:
                problem = "a list at an address may change unseen; download it, and include the file"
                raise UsageError(str(Problem(str(file), number, 1, problem)))
            inner = file.parent / included["file"]
            if inner.resolve() not in seen:
                yield from _files_of(inner, seen)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of requirements with their first line numbers, as uv reads them."""
    carried, begin = "", 0
    for number, written in enumerate(re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")), 1):
        line = re.sub(r"(^|\s)#.*", "", written)
        begin = begin if carried else number
        if line == written and line.endswith("\\"):  # a comment continues in no other line
            carried += f"{line[:-1]} "
            continue
        whole, carried = (carried + line).strip(), ""
        if whole:
            yield begin, whole


def _expanded(line: str) -> str:
    """A line with the variables of the environment that uv substitutes; they may be secret."""
    return re.sub(r"\$\{([A-Z0-9_]+)\}", lambda name: os.environ.get(name[1], name[0]), line)


def _problems(file: Path, text: str, base: Path) -> list[Problem]:
    if file.suffix != ".toml":
        return _of_lines(file, text, base)
    try:
        reasons = _of_project(toml(text), base, decisive=_NEEDED)
    except ValueError as error:
        reasons = [f"this is no TOML: {error}"]
    return [Problem(str(file), 1, 1, reason) for reason in reasons]


def _of_lines(file: Path, text: str, base: Path) -> list[Problem]:
    reasons = ((number, _reason(line, base)) for number, line in _lines(text))
    return [Problem(str(file), number, 1, reason) for number, reason in reasons if reason]


def _reason(written: str, base: Path) -> str:
    """Why a line of requirements is refused; empty for one that is not."""
    line = _expanded(written)
    editable = _EDITABLE.fullmatch(line)
    target = editable["target"].strip() if editable else line
    if target in {".", "./"}:
        return _own_project(base / "pyproject.toml")
    if line.startswith("--no-binary"):
        return f"{written}: nothing is built on this machine; remove the option"
    if line.startswith("-") and not editable:
        return ""
    return "" if not editable and _is_harmless(line, base) else f"{written}: {REMEDY}"


def _is_harmless(line: str, base: Path) -> bool:
    """Whether a requirement is a package name, a web address, or a wheel."""
    named = _NAMED.fullmatch(line)
    if named and named["rest"].startswith("@"):
        return _is_built_elsewhere(named["rest"][1:].split(";")[0].strip(), base)
    first = re.split(r"[\s;\[<>=!~(,]", line, maxsplit=1)[0]
    if named and not _ARCHIVE.search(first) and re.match(r"$|[<>=!~;(]|--", named["rest"]):
        return True
    return _is_built_elsewhere(line.split(maxsplit=1)[0], base)


def _is_built_elsewhere(target: str, base: Path) -> bool:
    """Whether a target is a web address, as those of an index are, or a wheel of this machine."""
    if re.match(r"https?://", target):
        return True
    path = unquote(re.sub(r"#.*|\[[^\]]*\]$|^file:(//(localhost)?(?=/))?", "", target))
    # A folder may have such a name too, and would be built.
    return ":" not in path and path.endswith(".whl") and not (base / path).is_dir()


def _own_project(file: Path) -> str:
    """Why the project itself cannot be named: only a build would tell its dependencies."""
    try:
        text = read_regular(file).decode(errors="replace")
        reasons = _of_project(toml(text), file.parent, decisive=_STATIC)
    except OSError:
        reasons = [f"there is no {file.name}, so its setup.py would run here"]
    except ValueError as error:
        reasons = [f"{file.name} is no TOML: {error}"]
    travels = "leave the line out (your project travels as it is), and name what it needs"
    return f"the project itself: {'; '.join(reasons)}; {travels}" if reasons else ""


def _of_project(document: Mapping[str, Any], base: Path, decisive: Set[str]) -> list[str]:
    """The parts of a pyproject.toml that need a build, as a dynamic key of `decisive` does."""
    project, uv = _table(document, "project"), _table(document, "tool", "uv")
    if not project:
        return ["there is no [project], so a build would have to tell them; write a requirements.txt"]
    dynamic = sorted(decisive & {*_texts(project.get("dynamic"))})
    reasons = [f"{' and '.join(dynamic)}: dynamic, so a build would have to tell them"] if dynamic else []
    lists = (project.get("dependencies"), uv.get("override-dependencies"), uv.get("constraint-dependencies"))
    needed = [text.strip() for listed in lists for text in _texts(listed) if text.strip()]
    reasons += [f"{text}: {REMEDY}" for text in needed if not _is_harmless(text, base)]
    names = {_normal(re.split(r"[\s;\[<>=!~(,@]", text, maxsplit=1)[0]) for text in needed}
    for name, listed in _table(uv, "sources").items():
        sources = listed if isinstance(listed, list) else [listed]
        if _normal(name) in names and not all(_is_harmless_source(source, base) for source in sources):
            reasons.append(f"tool.uv.sources.{name}: {REMEDY}")
    return reasons


def _is_harmless_source(source: object, base: Path) -> bool:
    target = source.get("url") or source.get("path") if isinstance(source, dict) else None
    return (
        _is_built_elsewhere(str(target), base) if target else isinstance(source, dict) and "index" in source
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _table(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        inner = document.get(name)
        document = inner if isinstance(inner, dict) else {}
    return document


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
