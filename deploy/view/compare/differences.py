"""The differences between runs: code, arguments, environment, versions, hosts, options. Pure.

Each run has a record of its launch. Only values that may change its course are compared: no job id, no port.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...console.fold import fold, fold_names
from ..page.records import Records, RunRecord, commit_of, list_of, plain, records_of

MOST_DIFF_LINES = 400
NOTHING = "-"
VERSIONS = ("python", "executable", "torch", "mpi4py", "mpi")
HARDWARE = ("cores", "gpus")
PLAIN = ("program", "launcher", "backend", "ranks")
_ELSEWHERE = {
    *(*PLAIN, "args", "env", "options", "hosts", "code", "muster", "driver_python", "job", "attempt"),
    *("command", "commit", "clean"),
}


@dataclass(frozen=True)
class RunDifference:
    """One thing that differs: its value in each run, and for a text its lines as a diff to the first run."""

    section: str
    name: str
    values: tuple[str, ...]
    diff: tuple[str, ...] = ()


def differences(runs: Sequence[Records]) -> list[RunDifference]:
    """Everything that differs between the launches of these runs, code first."""
    changes = list(_code(runs))
    described = [_described(run.launches[0] if run.launches else {}) for run in runs]
    keys = dict.fromkeys(key for values in described for key in values)
    for section, name in sorted(keys, key=lambda key: _ORDER.index(key[0])):
        values = tuple(of_run.get((section, name), NOTHING) for of_run in described)
        if len({*values}) > 1:
            changes.append(RunDifference(section, name, values))
    return changes


_ORDER = ("arguments", "environment", "launch", "versions", "hosts", "options", "other")


def unrecorded(runs: Sequence[Records]) -> list[str]:
    """The runs without a record of their launch, as older versions left them."""
    return [run.name for run in runs if not run.launches]


def _described(launch: RunRecord) -> dict[tuple[str, str], str]:
    """All inputs of a launch, as texts by section and name."""
    described = {("launch", name): _plain(launch[name]) for name in PLAIN if name in launch}
    described["launch", "commit"] = commit_of(launch) or NOTHING
    for name, value in options_of([str(token) for token in list_of(launch.get("args"))]):
        described["arguments", name] = value
    for section, key in (("environment", "env"), ("options", "options")):
        values = launch.get(key)
        for name, value in values.items() if isinstance(values, dict) else ():
            described[section, str(name)] = _plain(value)
    if "hosts" in launch:
        described |= _of_hosts(records_of(launch["hosts"]))
    for name, key in (("Muster", "muster"), ("driver's Python", "driver_python")):
        if key in launch:
            described["versions", name] = _plain(launch[key])
    for name in launch.keys() - _ELSEWHERE:  # records of a later version
        described["other", str(name)] = _plain(launch[name])
    return described


def options_of(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """The options of a command line with their values; other tokens are one entry.

    `--lr 0.1`, `--lr=0.1` and `-v` are options; a repeated option has all its values.
    A token after an option counts as its value.
    """
    options: dict[str, list[str]] = {}
    left = list(tokens)
    while left:
        token = left.pop(0)
        if not _is_option(token):
            options.setdefault("words", []).append(token)
            continue
        name, equals, value = token.partition("=")
        if not equals:
            value = left.pop(0) if left and not _is_option(left[0]) else "given"
        options.setdefault(name, []).append(value)
    return [(name, " ".join(values)) for name, values in options.items()]


def _is_option(token: str) -> bool:
    return token.startswith("-") and len(token) > 1 and not token[1:2].isdigit() and token[1:2] != "."


def _of_hosts(hosts: Sequence[RunRecord]) -> Iterator[tuple[tuple[str, str], str]]:
    """Their names and ranks, and each property, by host where hosts differ."""
    yield ("hosts", "names"), fold_names(str(host.get("name")) for host in hosts)
    ranks = [(str(host.get("name")), str(len(list_of(host.get("ranks"))))) for host in hosts]
    yield ("hosts", "ranks on each"), _by_host(ranks)
    for section, names in (("versions", VERSIONS), ("hosts", HARDWARE)):
        for name in names:
            values = [(str(host.get("name")), _plain(host[name])) for host in hosts if name in host]
            if values:
                yield (section, name), _by_host(values)


def _by_host(values: Sequence[tuple[str, str]]) -> str:
    """`2.6.0` if all hosts have the same, otherwise `2.6.0; node3: 2.5.1`."""
    groups = fold(values)
    return "; ".join(
        value if not index else f"{fold_names(names)}: {value}" for index, (names, value) in enumerate(groups)
    )


def _plain(value: object) -> str:
    return plain(value) or "none"


def _code(runs: Sequence[Records]) -> Iterator[RunDifference]:
    """Files with different contents, with the changed lines if the texts were kept."""
    files = [_files(run) for run in runs]
    if not all(files):
        return
    for path in sorted({path for of_run in files for path in of_run}):
        digests = [of_run.get(path) for of_run in files]
        if len({*digests}) > 1:
            yield RunDifference("code", path, tuple(_versions(digests)), tuple(_diff(path, digests, runs)))


def _files(run: Records) -> Mapping[str, str]:
    code = run.launches[0].get("code") if run.launches else None
    files = code.get("files") if isinstance(code, dict) else None
    return {str(path): str(digest) for path, digest in files.items()} if isinstance(files, dict) else {}


def _versions(digests: Sequence[str | None]) -> Iterator[str]:
    """A letter for each content: `text A`, `text B`; else `no such file`."""
    letters: dict[str, str] = {}
    for digest in digests:
        if digest is None:
            yield "no such file"
        else:
            yield f"text {letters.setdefault(digest, chr(ord('A') + len(letters) % 26))}"


def _diff(path: str, digests: Sequence[str | None], runs: Sequence[Records]) -> Iterator[str]:
    """The changed lines from the first run to the first one with another content."""
    other = next(index for index, digest in enumerate(digests) if digest != digests[0])
    texts = [
        "" if digest is None else run.texts.get(digest)
        for digest, run in ((digests[0], runs[0]), (digests[other], runs[other]))
    ]
    before, after = texts
    if before is None or after is None or None in {digests[0], digests[other]}:
        return
    names = (f"{runs[0].name}/{path}", f"{runs[other].name}/{path}")
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=2)
    for number, line in enumerate(lines):
        if number == MOST_DIFF_LINES:
            yield "… more lines are left out"
            return
        yield line
