"""Python files of the roles as modules: programs that run on hosts, and filters without Ansible."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROLES = Path(__file__).parents[2] / "ansible" / "roles"


def module(role: str, name: str) -> ModuleType:
    """A program that a role runs on hosts."""
    return loaded(f"{role}/files/{name}.py")


def loaded(path: str) -> ModuleType:
    """A file below the folder of the roles."""
    file = ROLES / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
