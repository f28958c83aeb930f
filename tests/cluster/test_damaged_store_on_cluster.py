"""A host whose store has lost the program of an earlier launch, beside two that have it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from tests.launching import ONE_THREAD, Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

PROGRAM = 'import os\nprint("the real program, rank", os.environ["RANK"])\n'
DIGEST = hashlib.sha256(PROGRAM.encode()).hexdigest()
KEPT = f"/home/muster/.muster/store/{DIGEST[:2]}/{DIGEST[2:]}"


@pytest.mark.soak
def test_a_lost_program_is_sent_to_its_host_again(cluster: Cluster, project: Project) -> None:
    (project.path / "said.py").write_text(PROGRAM)
    words = ("--hosts", str(cluster.hosts_file), "--script", "said.py", *ONE_THREAD)
    for damage in ("true", f"truncate -s 0 {KEPT}", f"printf x | dd of={KEPT} conv=notrunc"):
        assert cluster.exec("node3", ("sh", "-c", damage)).returncode == 0
        done = project.launch(*words)
        assert done.status == 0, done.output
        ranks = re.findall(r"^\[\d node\d\] the real program, rank (\d)$", done.output, re.M)
        assert sorted(ranks) == [*"012345"], done.output
        assert cluster.exec("node3", ("cat", KEPT)).stdout == PROGRAM
