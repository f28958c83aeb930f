"""Real launches on this machine, with the wheels, in their own home folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "a project")


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project, in whose folder and environment this process is: its commands need no process each."""
    monkeypatch.chdir(project.path)
    for name, value in project.env.items():
        monkeypatch.setenv(name, value)
    return project
