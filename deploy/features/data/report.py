"""The output of `muster data`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.errors import lines_of
from ...core.text.fold import HostMessage, fold_messages
from ...core.text.text import count, table
from .messages import DataSet, DataVerified
from .push import DataPushOutcome, DataPushResult


def pushed_as_text(pushed: DataPushResult, seconds: float) -> str:
    """The outcome on every host, and the bytes that left this machine."""
    lines = table(
        message[:2]
        for message in fold_messages(
            HostMessage(host, _outcome(outcome)) for host, outcome in pushed.hosts.items()
        )
    )
    have = sum(not outcome.error for outcome in pushed.hosts.values())
    lines += [
        "",
        f"{pushed.name}: on {have} of {count(len(pushed.hosts), 'host')} after {seconds:.0f} s; "
        f"{pushed.sent / 1e6:.1f} MB left this machine",
    ]
    lines += pushed.notes
    if have:
        lines += [f"ranks find it at $MUSTER_DATA/{pushed.name}"]
    return "\n".join(lines) + "\n"


def _outcome(outcome: DataPushOutcome) -> str:
    if outcome.error:
        return f"FAILED: {outcome.error}"
    if outcome.same_as:
        return f"has the same home as {outcome.same_as}"
    holds = f"{count(outcome.files, 'file')}, {outcome.size / 1e6:.1f} MB"
    if not outcome.received:
        return f"{holds}: already up to date"
    return f"{holds}: {outcome.received / 1e6:.1f} MB transferred"


def listed_as_text(hosts: Mapping[str, Sequence[DataSet]]) -> str:
    """A line for each set and host, by name, so that differences between hosts are side by side."""
    rows = [("name", "host", "files", "MB", "version", "")]
    names = sorted({held.name for sets in hosts.values() for held in sets})
    for name in names:
        for host, sets in hosts.items():
            named = [held for held in sets if held.name == name]
            rows += [_row(host, held) for held in named] or [(name, host, "-", "-", "-", "not here")]
    if len(rows) == 1:
        return "no data sets; to bring one: muster data push FOLDER\n"
    return "".join(f"{line}\n" for line in table(rows))


def _row(host: str, held: DataSet) -> tuple[str, str, str, str, str, str]:
    part = f"shard {held.shard} of {held.of}" if held.of > 1 else ""
    note = "; ".join(filter(None, [part, held.error]))
    return held.name, host, str(held.files), f"{held.bytes / 1e6:.1f}", held.digest[:8] or "-", note


def verified_as_text(name: str, hosts: Mapping[str, DataVerified], errors: Mapping[str, str]) -> str:
    """The damaged files of each host, and a line if versions differ."""
    lines = lines_of(errors.items())
    for host, answer in hosts.items():
        if answer.damaged:
            lines += [f"{host}: {name} is damaged; a push repairs it"]
            lines += [f"    {line}" for line in answer.damaged]
        else:
            lines += [f"{host}: {name} {answer.digest[:8]} is as it was pushed"]
    if len({answer.digest for answer in hosts.values()}) > 1:
        lines += [f"the hosts have different versions of {name}: push it again"]
    return "".join(f"{line}\n" for line in lines)
