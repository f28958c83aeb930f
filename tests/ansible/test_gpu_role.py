"""The findings of the role `gpu` on machines that are trees of files (tests/golden/gpus)."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from typing import Any

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, run
from tests.ansible.test_problems import CUDA, SEEN, problems
from tests.node.trees import FOLDER, unpack

# One run for these: all of them are judged in tests/node/test_gpus.py.
MACHINES = ["healthy-8-gpus", "no-driver", "old-driver"]
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {{name: gpu, public: true}}
    - ansible.builtin.include_role: {{name: gpu, tasks_from: verify_present}}
    - ansible.builtin.copy:
        dest: "{folder}/{{{{ inventory_hostname }}}}.json"
        content: "{{{{ {{'findings': gpu_findings | default([]), 'checks': gpu_checks}} | to_json }}}}"
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a play of the role left of each machine, all at once, on this machine as if on theirs."""
    folder = tmp_path_factory.mktemp("gpus")
    for name in MACHINES:
        unpack((FOLDER / f"{name}.txt").read_text(), folder / name)
    variables = {
        "ansible_python_interpreter": sys.executable,
        "muster_stack": "node",
        "muster_seen": SEEN | CUDA,
        "muster_engine_is_ours": False,
        "container_engine_nvidia": "auto",
        "node_image": "muster:cuda",
        "gpu_root": f"{folder}/{{{{ inventory_hostname }}}}",
    }
    (folder / "play.yml").write_text(PLAY.format(folder=folder))
    done = run(
        *("ansible-playbook", "play.yml", "--inventory", f"{','.join(MACHINES)},"),
        *("--extra-vars", json.dumps(variables)),
        cwd=folder,
        env=os.environ | {"PATH": PATH, "ANSIBLE_ROLES_PATH": str(BOOKS / "roles"), "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in MACHINES}


@pytest.mark.parametrize("name", MACHINES)
def test_the_role_says_of_a_machine_what_a_check_says(name: str, said: dict[str, dict[str, Any]]) -> None:
    golden = re.findall(r"^(\w+) \[(\S+)\] (.*)", (FOLDER / f"{name}.txt").read_text(), re.MULTILINE)
    expected = [found for found in golden if found[1] != "image.architecture-differs"]  # of unknown origin
    findings = said[name]["findings"]
    assert [(one["severity"], one["id"], one["text"]) for one in findings] == expected
    assert all(one["line"].endswith(one["remedy"]) for one in findings)
    errors = [one for one in expected if one[0] == "error"]
    assert [(check["id"], check["ok"]) for check in said[name]["checks"]] == [("gpu.fit", not errors)]


def test_a_card_without_a_driver_is_a_problem_unless_gpus_are_left_alone() -> None:
    bare = CUDA | {"nvidia_cards": 2}
    assert "no driver is loaded; install the driver (docs/how-to/drivers.md)" in problems(**bare)
    assert problems(choices={"container_engine_nvidia": "no"}, **bare) == ""


def test_a_filter_plugin_imports_nothing_of_ours_before_a_filter_is_called() -> None:
    """Each task on each host is a process of its own, which loads all filter plugins of the play."""
    plugins = sorted(BOOKS.glob("**/filter_plugins/*.py"))
    assert plugins
    for plugin in plugins:
        body = ast.parse(plugin.read_text()).body
        modules = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
        modules += [name.name for node in body if isinstance(node, ast.Import) for name in node.names]
        assert not [name for name in modules if name.split(".")[0] == "muster"], plugin
