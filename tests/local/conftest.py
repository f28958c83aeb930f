"""Real launches on this machine, with the wheels, in a home of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "a project")
