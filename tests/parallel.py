"""Which tests run side by side in xdist's workers, in which order, and on which cluster.

In `make test` the tests that share a cluster run in one worker. In `make soak`, where those would take longer
than all others together, each worker has a cluster of its own, and runs the tests of a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tests import load

TESTS = Path(__file__).parent
# Bare hosts live through these files in this order; the other files of ansible/ make hosts of their own.
LIFE = ("test_inventory", "test_setup", "test_rotation", "test_more_hosts", "test_clocks", "test_teardown")
# In make soak the files come first that take minutes, some of which mostly wait; then folder after folder.
LONGEST = (
    "attacks/test_liars.py",
    "ansible/test_setup.py",
    "ansible/test_venv.py",
    "local/test_hangs.py",
    "ansible/test_node.py",
    "cluster/test_faults.py",
    "train/test_gpt_sharded.py",
    "local/test_seeded_stragglers.py",
    "cluster/test_slurm_endings.py",
)
ORDER = ("cluster", "ansible", "attacks", "conformance", "train", "local", "node", "unit")
GROUPS = {"cluster": "cluster/", "ansible": "ansible/", "slurm": "cluster/test_slurm_"}
"""How the files begin whose tests share hosts in make test; the last group that fits."""


def number(env: Mapping[str, str]) -> int:
    """The number of the cluster that a process with this environment may use."""
    first = int(env.get("MUSTER_TEST_CLUSTER", "0"))
    worker = int(env.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return first + worker if load.SOAK else first


NUMBER = number(os.environ)
"""Of the cluster of this process: its nodes, bare hosts, ports and addresses."""


def place(path: Path) -> tuple[int, int]:
    """When the tests of a file run."""
    file = path.relative_to(TESTS)
    name, folder = file.as_posix(), file.parts[0]
    early = LONGEST.index(name) if load.SOAK and name in LONGEST else len(LONGEST)
    return early, ORDER.index(folder) if folder in ORDER else len(ORDER)


def group(nodeid: str) -> str:
    """The tests that one worker runs: the name of their group, or of their file."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    if load.SOAK:
        shared = file.startswith("ansible/") and PurePosixPath(file).stem in LIFE
        return "life of the bare hosts" if shared else file
    fitting = [name for name, beginning in GROUPS.items() if file.startswith(beginning)]
    return fitting[-1] if fitting else file
