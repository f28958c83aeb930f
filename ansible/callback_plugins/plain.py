"""Ansible's usual output, with each error once: its message, without the task's source and empty fields."""

from __future__ import annotations

import sys
from typing import Any

from ansible.plugins.callback import default

from ansible import constants  # type: ignore[attr-defined]  # mypy takes this repository's folder for the package
from muster.deploy.core.text.fold import HostMessage, fold_messages
from muster.deploy.core.text.text import fitted
from muster.deploy.features.setup.ansible_result import obstacle

DOCUMENTATION = """
name: plain
type: stdout
short_description: Ansible's usual output, with each error once
description:
  - The message of a task that fails on purpose is printed alone, in lines no wider than the terminal.
  - Other errors have the fields of their result. With -v they have the source of the task too.
  - Hosts that cannot be reached for the same reason share a line, after the task.
  - An error that the playbook ignores is left to the task after it.
  - The recap counts as failed the hosts that the playbook names (set_stats, muster_failed), if it names some.
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

    def __init__(self) -> None:
        super().__init__()
        self._unreached: list[HostMessage] = []

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
        """Keep why a host was not reached until all hosts have ended the task."""
        if self._display.verbosity:
            super().v2_runner_on_unreachable(result)
        elif not result.task.ignore_unreachable:
            self._unreached.append(HostMessage(result.host.get_name(), obstacle(result.result)))

    def _print_unreached(self) -> None:
        """Print why hosts were not reached; those with the same reason share a line."""
        for message in fold_messages(self._unreached):
            self._display.display(fitted(str(message), sys.stdout), color=constants.COLOR_UNREACHABLE)
        self._unreached = []

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A play begins: the last task of the play before it has ended."""
        self._print_unreached()
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """A task begins: the one before it has ended."""
        self._print_unreached()
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """A handler begins: the task before it has ended."""
        self._print_unreached()
        super().v2_playbook_on_handler_task_start(task)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The playbook has ended."""
        self._print_unreached()
        failed = stats.custom.get("_run", {}).pop("muster_failed", None)
        if failed is not None:  # one host has failed for all: count those that did not do what was asked
            stats.failures.clear()
            stats.failures.update(dict.fromkeys(failed, 1))
            stats.processed.update(dict.fromkeys(failed, 1))
        super().v2_playbook_on_stats(stats)
