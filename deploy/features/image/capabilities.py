"""The proof of an image, as docker/prove.py prints it, for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...core.decode import MALFORMED, from_json
from ...core.errors import UsageError
from ...core.text.text import table


@dataclass(frozen=True)
class Promise:
    """One promise of an image."""

    name: str
    kept: bool
    found: str


@dataclass(frozen=True)
class Proof:
    """Every promise of an image."""

    flavor: str
    checks: tuple[Promise, ...]

    @property
    def broken(self) -> int:
        """The number of promises that are not kept."""
        return sum(not check.kept for check in self.checks)


def parse(text: str, image: str) -> Proof:
    """Parse the proof that an image printed. `UsageError` if the text is not a proof."""
    try:
        proof = json.loads(text)
        checks = tuple(Promise(*from_json(list, check)) for check in proof["checks"])
        return Proof(from_json(str, proof["flavor"]), checks)
    except MALFORMED:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise UsageError(
            f"{image} has no proof of its versions, as images of Muster have; its output: {last}"
        ) from None


def as_text(image: str, size: int, labels: Mapping[str, str], proof: Proof) -> str:
    """The table of `muster image check`."""
    versions = " ".join(f"{name}={value}" for name, value in _own(labels) if value)
    lines = [f"{image}  {size / 1e9:.2f} GB", f"{versions}", ""]
    lines += table(("kept" if check.kept else "BROKEN", check.name, check.found) for check in proof.checks)
    count = len(proof.checks)
    verdict = f"{count - proof.broken} of {count} promises of {proof.flavor} are kept"
    return "\n".join([*lines, "", verdict, ""])


def _own(labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return sorted(
        (name.removeprefix("muster."), value) for name, value in labels.items() if "muster." in name
    )
