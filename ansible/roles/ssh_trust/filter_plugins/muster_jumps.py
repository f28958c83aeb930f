"""Finds the hosts behind a jump host, and the command that goes through it with the operator's own login.

A filter imports what it needs itself, as in ../../gpu/filter_plugins/muster_gpus.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AT_ONCE = 16


def jumps(names: Sequence[str], config: str) -> dict[str, str]:
    """Return the proxy command of each host that an SSH configuration reaches by ProxyJump.

    For a jump ssh reads the same configuration as for the target: Muster's, where a jump host of the cluster
    has the jobs' account, which may not forward.
    """
    from muster.deploy.core.connect.transports.ssh_config import proxy_of_jump

    path = Path(config).expanduser()
    if not path.is_file():
        return {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(lambda name: jump(name, path), names), strict=True))
    return {name: proxy_of_jump(jump, ("-F", str(path))) for name, jump in found.items() if jump}


def jump(name: str, config: Path) -> str:
    """Return the jump hosts of a host; "" without any."""
    asked = ["ssh", "-G", "-F", str(config), "--", name]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    settings = (line.partition(" ") for line in done.stdout.splitlines())
    value = next((value for key, _, value in settings if key == "proxyjump"), "none")
    return "" if value == "none" else value


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_jumps": jumps}
