"""Lists, makes and removes the environments of packages on this host."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable
from pathlib import Path

from ....core.agent.facts import glibc_version
from ....core.wire.folders import identity_of_folder, make_private
from ....core.wire.frames import Frame
from ....core.wire.paths import MusterPaths
from .folders import complete_in, hold, is_key, remove

_DRIVERS = ("/sys/module/nvidia/version", "/proc/driver/nvidia/version")


class Environments:
    """Answers requests about environments."""

    def __init__(self, home: Path, send: Callable[[Frame], None]) -> None:
        self._home, self._send = home, send
        self._root = Path(MusterPaths(str(home)).environments)
        self._held = set[str]()

    def do_envs(self, request: Frame, payload: bytes) -> Frame:
        """The environments that are complete, and the facts that decide which wheels run here."""
        make_private(self._home, self._root)
        return {
            "home": identity_of_folder(self._root / "home"),
            "machine": platform.machine(),
            "glibc": glibc_version(),
            "driver": _driver(),
            "environments": dict(complete_in(self._root)),
        }

    def do_env_reach(self, request: Frame, payload: bytes) -> Frame:
        """Why one of these addresses does not answer here; empty if all do."""
        from .reach import refusal  # noqa: PLC0415  # most launches need no index

        return {"refusal": refusal(request["urls"])}

    def do_env_make(self, request: Frame, payload: bytes) -> Frame:
        """Make an environment; the end is an event, because that may take minutes."""
        from .build import make_in_thread  # noqa: PLC0415  # most launches make none

        make_in_thread(self._home, request, payload.decode(), self._send)
        return {}

    def do_env_hold(self, request: Frame, payload: bytes) -> Frame:
        """Keep an environment that ranks use from being removed, as long as this process lives."""
        if request["key"] not in self._held:
            hold(self._home, request["key"])
            self._held.add(request["key"])
        return {}

    def do_env_remove(self, request: Frame, payload: bytes) -> Frame:
        """Remove environments that no job uses; `before`: only those last used before that time, or null."""
        before = request["before"]
        keys = request["keys"] or [path.name for path in sorted(self._root.glob("*")) if is_key(path.name)]
        sizes = {key: remove(self._root, key, before) for key in keys if is_key(key)}
        removed = {key: size for key, size in sizes.items() if size is not None}
        kept = [key for key in sizes if key not in removed and (self._root / key).is_dir()]
        return {"removed": list(removed), "kept": kept, "freed": sum(removed.values())}


def _driver() -> str:
    for path in _DRIVERS:
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            if match := re.search(r"\b\d{3,4}\.\d+(\.\d+)?", file.read(4096)):
                return match.group()
    return ""
