"""The results of the proof as text, as a table for docs/gpu.md, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from .records import Record

STYLE = "body{font:15px sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:left}.fail{color:#b00020}"


@dataclass(frozen=True)
class Part:
    """The records of one part, how long it ran, and why it ended early (empty if it did not)."""

    name: str
    records: tuple[Record, ...]
    seconds: float
    ended: str = ""

    @property
    def passed(self) -> bool:
        """Whether the part reached its end and every check holds."""
        return not self.ended and not any(record.outcome == "fail" for record in self.records)


def line(part: Part) -> str:
    """One line about a part, and one for each failure."""
    counts = {
        kind: sum(record.outcome == kind for record in part.records)
        for kind in ("pass", "fail", "skip", "figure")
    }
    text = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number) or "no record"
    lines = [f"{part.name}: {text}, {part.seconds:.1f} s{f', {part.ended}' if part.ended else ''}"]
    lines += [
        f"  failed: {record.name}: {value_of(record)} {record.note}".rstrip()
        for record in part.records
        if record.outcome == "fail"
    ]
    return "\n".join(lines) + "\n"


def summary(parts: Sequence[Part]) -> str:
    """The last line of the proof."""
    failed = [part.name for part in parts if not part.passed]
    seconds = sum(part.seconds for part in parts)
    return f"{len(parts)} parts in {seconds:.0f} s; failed: {', '.join(failed) or 'none'}\n"


def table(parts: Sequence[Part]) -> str:
    """A Markdown table, and a line of each part for the checks that hold and have no figure."""
    rows = ["| part | what | result | note |", "|---|---|---|---|"]
    lines: dict[str, list[str]] = {}
    for part, record in _rows(parts):
        if record.outcome == "pass" and record.value is None:
            lines.setdefault(part, []).append(record.name)
            continue
        rows.append(f"| {part} | {_cell(record.name)} | {_cell(result_of(record))} | {_cell(record.note)} |")
    held = [f"- `{part}`, also: {_cell('; '.join(names))}." for part, names in lines.items()]
    return "\n".join([*rows, "", *held]).rstrip() + "\n"


def page(parts: Sequence[Part]) -> str:
    """The same table as one HTML page, below a line for each part."""
    rows = "".join(
        f'<tr class="{record.outcome}"><td>{escape(part)}<td>{escape(record.name)}'
        f"<td>{escape(result_of(record))}<td>{escape(record.note)}\n"
        for part, record in _rows(parts)
    )
    head = "<tr><th>part<th>what<th>result<th>note\n"
    title = f'<!doctype html><meta charset="utf-8"><title>GPU proof</title><style>{STYLE}</style>\n'
    lines = "".join(f"<li>{escape(line(part).partition(chr(10))[0])}\n" for part in parts)
    return f"{title}<h1>GPU proof</h1><p>{summary(parts)}<ul>{lines}</ul><table>{head}{rows}</table>\n"


def result_of(record: Record) -> str:
    """`pass 1.5 s`, `3.2 TB/s`, `skip`."""
    word = "" if record.outcome == "figure" else record.outcome
    return " ".join(filter(None, (word, value_of(record))))


def value_of(record: Record) -> str:
    """The value with its unit; empty without one."""
    if record.value is None:
        return ""
    text = str(record.value)
    if isinstance(record.value, float):
        text = f"{record.value:,.0f}" if abs(record.value) >= 1000 else f"{record.value:.4g}"
    return f"{text} {record.unit}".rstrip()


def _rows(parts: Sequence[Part]) -> Iterator[tuple[str, Record]]:
    for part in parts:
        for record in part.records:
            yield part.name, record
        if part.ended:
            yield part.name, Record("the part ran to its end", "fail", note=part.ended)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
