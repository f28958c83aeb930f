"""Builds an image on this machine, and shows each step of the build while it runs."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

STEP = re.compile(r"#\d+ (\[.*\d+/\d+\] .*)")  # of BuildKit's plain output
WIDTH, LAST = 100, 30  # columns of a step, lines of a failed build


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """Ansible finds an action by this name."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the command of `argv`. Its last lines are the error if it fails."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        lines: list[str] = []
        with subprocess.Popen(
            self._task.args["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as build:
            for line in build.stdout or ():
                lines = [*lines[1 - LAST :], line.rstrip()]
                if step := STEP.match(line):
                    Display().display(step.group(1)[:WIDTH])
        if build.returncode:
            raise AnsibleActionFail("the image was not built:\n" + "\n".join(lines))
        return result | {"changed": True}
