"""Sets kernel parameters for training, and restores them: `python3 - MODE ROOT [WANTED]`, WANTED as JSON.

WANTED has a value for each file; `*` in a path matches all existing files. MODE `look` says whether values
have to change, `apply` sets them, `again` sets the recorded values (at each start of the host), `remove`
restores the values from before. ROOT is `/`, or a folder in its place.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

RECORD = Path("/var/lib/muster/tuning.json")
Values = dict[str, str]
"""Values by the absolute path of their file."""


def value(content: str) -> str:
    """Return the value in a file's content: with single spaces, and of several choices the `[chosen]` one."""
    chosen = re.search(r"\[(\S+)\]", content)
    return chosen.group(1) if chosen else " ".join(content.split())


class Host:
    """The kernel parameters below a root, and the record of what setup changed."""

    def __init__(self, root: str, record: Path = RECORD) -> None:
        self.root, self.record = Path(root), record

    def read(self, path: str) -> str:
        """Return the value of a file."""
        return value((self.root / path.lstrip("/")).read_text())

    def write(self, path: str, new: str) -> None:
        """Set the value of a file; this program ends if the kernel refuses it."""
        try:
            (self.root / path.lstrip("/")).write_text(f"{new}\n")
        except OSError as error:
            sys.exit(f"{path}: cannot be set to {new}: {error.strerror}; take it out of the role's variables")

    def expanded(self, wanted: Values) -> Values:
        """Return the values of the files that exist: a host without cpufreq has no governor."""
        places = {path: sorted(self.root.glob(path.lstrip("/"))) for path in wanted}
        return {
            f"/{place.relative_to(self.root)}": value(wanted[path])
            for path, matches in places.items()
            for place in matches
        }

    def recorded(self) -> dict[str, Any]:
        """Return the record: `wanted` of the last run, what the kernel made of it (`set`), and `before`."""
        try:
            return dict(json.loads(self.record.read_text()))
        except (OSError, ValueError):
            return {"wanted": {}, "set": {}, "before": {}}

    def differs(self, wanted: Values) -> bool:
        """Whether `apply` would set a value, or put one back."""
        now, record = self.expanded(wanted), self.recorded()
        asked, kept = self.expanded(record["wanted"]), record["set"]
        return kept.keys() != now.keys() or any(
            self.read(path) != (kept[path] if asked.get(path) == new else new) for path, new in now.items()
        )

    def apply(self, wanted: Values) -> None:
        """Record the values from before the first setup, then set the wanted values."""
        record, now = self.recorded(), self.expanded(wanted)
        gone = {path: record["set"][path] for path in record["set"].keys() - now.keys()}
        before = {path: record["before"].get(path, self.read(path)) for path in now}
        self.note({"wanted": wanted, "set": now | gone, "before": before | record["before"]})
        self.put_back(gone, record["before"])
        for path, new in now.items():
            if self.read(path) != new:
                self.write(path, new)
        kept = {path: self.read(path) for path in now}
        for path in (path for path in now if kept[path] != now[path]):
            print(f"{path}: the kernel keeps {kept[path]} instead of {now[path]}")
        self.note({"wanted": wanted, "set": kept, "before": before})

    def note(self, record: dict[str, Any]) -> None:
        """Write the record."""
        self.record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.record.write_text(json.dumps(record, indent=4) + "\n")

    def put_back(self, current: Values, before: Values) -> None:
        """Restore values, except those that somebody else has changed since."""
        for path, new in current.items():
            if not (self.root / path.lstrip("/")).exists() or path not in before:
                continue
            if self.read(path) == new:
                self.write(path, before[path])
            else:
                print(f"{path} stays {self.read(path)}: it was changed since setup set it to {new}")

    def remove(self) -> None:
        """Restore the recorded values, and delete the record."""
        record = self.recorded()
        self.put_back(record["set"], record["before"])
        self.record.unlink()


def main() -> None:
    """Run the mode; print `changed` if values changed or would change."""
    mode, host = sys.argv[1], Host(sys.argv[2])
    if mode == "remove":
        if host.record.exists():
            host.remove()
            print("changed")
        return
    wanted = host.recorded()["wanted"] if mode == "again" else json.loads(sys.argv[3])
    if host.differs(wanted):
        if mode != "look":
            host.apply(wanted)
        print("changed")


if __name__ == "__main__":
    main()
