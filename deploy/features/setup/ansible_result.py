"""Why Ansible could not use a host, from the result of a task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# What ssh and sudo print first, and Ansible around it: only the rest names the obstacle.
_PREFIX = re.compile(
    r"^(Task failed: )?(Action failed: )?(Failed to connect to the host via ssh: )?"
    r"(Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: )?"
)
_KNOWN = {
    r"(?i)(missing|incorrect) sudo password|password is required|no password was provided": (
        "sudo asks for a password there; give it once for all hosts: muster setup -- --ask-become-pass"
    ),
    r"python3\b.*(not found|No such file)": "it has no python3; install it (apt-get install python3)",
    r"sudo: (command )?not found": "it has no sudo; log in as root: muster setup -- -u root",
}
_LONGEST = 400


def obstacle(result: Mapping[str, Any]) -> str:
    """Return why a host could not be reached or asked, without the names of the programs that report it."""
    said = "\n".join(str(result.get(key, "")) for key in ("msg", "module_stderr", "stderr"))
    if refused := next((text for pattern, text in _KNOWN.items() if re.search(pattern, said)), ""):
        return refused
    lines = [line.strip() for line in _PREFIX.sub("", said).splitlines() if line.strip()]
    if result.get("unreachable"):
        return f"cannot log in: {' '.join(lines)[:_LONGEST]}"
    return f"cannot be examined: {lines[-1][:_LONGEST] if lines else 'for the reason, add -- -v'}"
