"""The seeded bugs on a node of the practice cluster, whose torch 2.6 records nothing of Gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hangs.capture import judge, seen
from tests.hangs.table import Hang, in_setting
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.launching import Project

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("hang", in_setting("torch 2.6"), ids=lambda hang: hang.program)
def test_a_seeded_bug_is_explained_while_it_hangs(project: Project, hang: Hang) -> None:
    _, verdict = seen(project, hang.path, "gloo", seconds=PATIENCE, hosts="node1 slots=3\n")
    assert not judge(hang, verdict), str(verdict)
