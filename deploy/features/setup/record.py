"""`.muster/hosts.json`: the hosts that have what setup made.

Setup adds hosts, and only the teardown of a host removes it. So a host of the record that is not in the hosts
file any more left it without being cleaned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import UsageError
from ...core.hosts import hostfile
from ...core.hosts.hostfile import Host
from ...core.wire.files import read_regular

NAME = "hosts.json"


def load(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """What setup recorded of each host, by its name; empty before the first setup.

    `UsageError` if the file is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return {}
    try:
        record = json.loads(read_regular(path))
        return {str(name): dict(host) for name, host in dict(record).items()}
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is damaged ({error}); move it away, and run setup again without --limit"
        ) from None


def left(folder: Path, listed: Collection[str]) -> tuple[Host, ...]:
    """The hosts of the record that are not among those of the hosts file."""
    gone = {name: host for name, host in load(folder).items() if name not in listed}
    text = "\n".join(_line(name, host) for name, host in gone.items())
    return hostfile.parse(text, str(folder / NAME)) if gone else ()


def _line(name: str, host: Mapping[str, Any]) -> str:
    user = f" user={host['user']}" if host.get("user") else ""
    port = f" port={host['ssh_port']}" if host.get("ssh_port") else ""
    return f"{name}{user}{port}"
