"""Sources of host names: an SSH configuration, and an Ansible inventory as Ansible itself reads it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..common.users import expanded
from ..connect.ownership import require_own, within
from ..errors import UsageError

# A file that no plugin can read is an error, not an empty inventory; only JSON is printed.
_SETTINGS = {
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
    "ANSIBLE_DEPRECATION_WARNINGS": "false",
    "ANSIBLE_NOCOLOR": "true",
}
_VARIABLES = ("group_vars", "host_vars")
DEEPEST = 16  # ssh(1) follows as many files that include each other


def aliases(config: Path, folder: Path) -> tuple[str, ...]:
    """The names of the Host lines of a configuration and its included files, in order, without patterns.

    `folder`: where relative paths of Include begin, ~/.ssh for a user's own configuration (ssh_config(5)).
    """
    return tuple(dict.fromkeys(_names(config, folder, DEEPEST)))


def _names(config: Path, folder: Path, deep: int) -> Iterator[str]:
    try:
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no configuration names no hosts; ssh itself reports one that it cannot read
        return
    for line in lines:
        keyword, *values = _tokens(line)
        if keyword == "host":
            yield from (value for value in values if not {*value} & {*"*?!"})
        elif keyword == "include" and deep:
            for value in values:
                path = Path(expanded(value))
                base, pattern = (Path("/"), str(path)[1:]) if path.is_absolute() else (folder, str(path))
                for included in sorted(base.glob(pattern)):
                    yield from _names(included, folder, deep - 1)


def _tokens(line: str) -> list[str]:
    """The keyword of a line in lower case, and its values; `Host=a` is read as `Host a`."""
    keyword, _, rest = line.strip().replace("=", " ", 1).replace("\t", " ").partition(" ")
    if not keyword or keyword.startswith("#"):
        return [""]
    try:
        return [keyword.lower(), *shlex.split(rest, comments=True)]
    except ValueError:  # a quote without an end: ssh refuses the line
        return [""]


def require_own_variables(inventory: Path) -> None:
    """`UsageError` if another user may have written the variables beside an inventory, or in its folder."""
    folder = inventory if inventory.is_dir() else inventory.parent
    require_own(
        (path for name in _VARIABLES for path in within(folder / name)), "Ansible's lookups run commands here"
    )


def load_inventory(path: Path) -> dict[str, Any]:
    """The inventory of a file or folder (INI, YAML, a script) as a JSON object, with `_meta.hostvars`."""
    if not path.exists():
        raise UsageError(f"{path}: no such inventory")
    require_own(within(path), "an inventory may be a script, which Ansible runs here")
    require_own_variables(path)
    if "ANSIBLE_CONFIG" not in os.environ:
        require_own([Path("ansible.cfg")], "it names plugins, which Ansible runs here")
    try:
        done = subprocess.run(
            [ansible_program("ansible-inventory", "reads inventories"), "-i", str(path), "--list"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **_SETTINGS},
        )
    except OSError as error:
        raise UsageError(f"ansible-inventory: {error.strerror}") from None
    if done.returncode:
        raise UsageError(f"{path}: ansible-inventory cannot read it:\n{done.stderr.strip()}")
    try:
        inventory = json.loads(done.stdout)
    except ValueError:
        inventory = None
    if not isinstance(inventory, dict):
        raise UsageError(f"{path}: ansible-inventory printed no JSON object:\n{done.stdout[:500]}")
    return inventory


def ansible_program(name: str, use: str) -> str:
    """The program of Ansible beside this Python, else on PATH: a virtual environment need not be active."""
    beside = Path(sys.executable).parent
    path = shutil.which(str(beside / name)) or shutil.which(name)
    if not path:
        raise UsageError(
            f"no {name} here, which {use}; pip install 'ansible-core>=2.19' (with Python 3.11 or newer)"
        )
    return path
