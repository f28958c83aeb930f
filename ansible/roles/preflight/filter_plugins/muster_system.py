"""The names and paths in which systems differ, from the files of ansible/vars/systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

UNSUPPORTED = "debian"  # for a system without a file: preflight refuses it, and asks about it before


def system(release: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the names and paths of a system by its os-release(5).

    A file has what differs from the files before it, in the order of ID_LIKE from its end, ID, ID-VERSION_ID.
    """
    import yaml

    files = {path.stem: path for path in Path(folder).glob("*.yml")}
    names = [*reversed(release.get("like", [])), release["id"], f"{release['id']}-{release['version']}"]
    found: dict[str, Any] = {}
    for name in [name for name in names if name in files] or [UNSUPPORTED]:
        for key, value in yaml.safe_load(files[name].read_text(encoding="utf-8")).items():
            found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value
    return found


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_system": system}
