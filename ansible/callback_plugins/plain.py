"""Ansible's usual output, with each error once: its message, without the task's source and empty fields."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ansible.plugins.callback import default

from ansible import constants

# As in the inventory plugin: any Ansible finds the package `muster` in the folder that holds ansible/.
MUSTER = sys.modules.setdefault("muster", ModuleType("muster"))
MUSTER.__path__ = [str(Path(__file__).resolve().parents[2])]

from muster.deploy.console.text import fitted  # noqa: E402  # found by that path

DOCUMENTATION = """
name: plain
type: stdout
short_description: Ansible's usual output, with each error once
description:
  - The message of a task that fails on purpose is printed alone, in lines no wider than the terminal.
  - Other errors have the fields of their result. With -v they have the source of the task too.
  - An error that the playbook ignores is left to the task after it.
extends_documentation_fragment: [default_callback, result_format_callback]
requirements:
  - set as stdout in configuration
"""
OWN_WORDS = {"ansible.builtin.fail", "ansible.builtin.assert"}


class CallbackModule(default.CallbackModule):  # type: ignore[misc]  # Ansible has no types
    """Ansible finds a callback plugin by this name."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "plain"

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Print the message of an error, once."""
        if self._display.verbosity:
            super().v2_runner_on_failed(result, ignore_errors)
        elif not ignore_errors:
            result.result.pop("exception", None)  # it repeats the message
            if result.task.action in OWN_WORDS and "results" not in result.result:
                if self._last_task_banner != result.task._uuid:
                    self._print_task_banner(result.task)
                text = fitted(str(result.result.get("msg", "")), sys.stdout)
                self._display.display(text, color=constants.COLOR_ERROR)
            else:
                super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Print why a host was not reached, once."""
        if self._display.verbosity:
            super().v2_runner_on_unreachable(result)
        elif not result.task.ignore_unreachable:
            result.result.pop("exception", None)
            super().v2_runner_on_unreachable(result)
