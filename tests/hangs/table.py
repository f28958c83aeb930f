"""The seeded bugs: programs that hang on three ranks, and what `muster why` must say of each.

The line of the program where the culprit is has the comment HERE, that of a rank that waits WAIT.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
HEALTHY = Path(__file__).with_name("healthy")
BOTH, GLOO = ("gloo", "mpi"), ("gloo",)


@dataclass(frozen=True)
class Hang:
    """A bug: the kind of the verdict, the culprits, and the operation in which the others wait.

    Where ranks wait in several operations, `operation` has them all, with `|` between: which of them began
    first is a matter of luck. `backends`: those under which it hangs; the others notice it by themselves, and
    the job fails. `ends`: Gloo notices it too after a moment, so only its record is judged.
    """

    program: str
    kind: str
    culprits: tuple[int, ...]
    operation: str
    backends: tuple[str, ...] = BOTH
    ends: bool = False

    @property
    def path(self) -> Path:
        return PROGRAMS / f"{self.program}.py"

    def lines(self, mark: str) -> set[str]:
        """`reads_data.py:3` for each line with this mark."""
        numbered = enumerate(self.path.read_text().splitlines(), 1)
        return {f"{self.path.name}:{number}" for number, line in numbered if mark in line.partition("#")[2]}


HANGS = (
    Hang("reads_data", "absent", (2,), "all_reduce #7 of group 0"),
    Hang("other_operation", "different", (1,), "all_reduce #4 of group 0"),
    Hang("other_root", "different", (2,), "broadcast #4 of group 0"),
    Hang("group_skipped", "deadlock", (0, 1), "all_reduce #"),
    Hang("both_receive", "deadlock", (0, 1), "recv from rank 0|recv from rank 1"),
    Hang("ring_of_receives", "deadlock", (0, 1, 2), "recv from rank"),
    Hang("left_early", "process", (1,), "all_reduce #4 of group 0", GLOO, ends=True),
    Hang("stopped", "process", (2,), "all_reduce #4 of group 0"),
    Hang("not_rank_0", "absent", (0,), "barrier #4 of group 0"),
    Hang("fewer_batches", "different", (2,), "all_reduce #8 of group 0"),
    Hang("only_rank_0_gathers", "different", (0,), "barrier #4 of group 0"),
    Hang("lock_taken_twice", "absent", (1,), "all_reduce #4 of group 0"),
    Hang("thread_has_lock", "absent", (1,), "all_reduce #4 of group 0"),
    Hang("file_locked", "absent", (2,), "all_reduce #5 of group 0"),
    Hang("child_killed", "absent", (1,), "all_reduce #4 of group 0"),
    Hang("opens_a_fifo", "absent", (0,), "all_reduce #4 of group 0"),
    Hang("waits_for_a_program", "absent", (0,), "barrier #4 of group 0"),
    Hang("loader_stuck", "absent", (2,), "all_reduce #7 of group 0"),
    Hang("group_made_by_some", "absent", (2,), ""),
    Hang("never_meets", "absent", (1,), "init_process_group", GLOO),
    Hang("expects_more_ranks", "unmet", (), "init_process_group", GLOO),
    Hang("other_size", "unmet", (2,), "init_process_group", GLOO),
    Hang("other_port", "unmet", (2,), "init_process_group", GLOO),
    Hang("message_against_collective", "deadlock", (0, 1), ""),
    Hang("groups_crossed", "deadlock", (0, 1), "all_reduce #1 of group"),
    Hang("backward_skipped", "absent", (2,), "all_reduce"),
    Hang("fewer_backwards", "different", (1,), "all_reduce"),
    Hang("never_sent", "absent", (2,), ""),
    Hang("receive_begun", "absent", (0,), "recv from rank 0"),
    Hang("swallowed_error", "absent", (1,), "all_reduce #4 of group 0"),
    Hang("endless_loop", "absent", (2,), "all_reduce #4 of group 0"),
    Hang("waits_for_a_client", "absent", (0,), "all_reduce #4 of group 0"),
    Hang("object_not_gathered", "absent", (0,), "all_gather #4 of group 0"),
    Hang("queue_is_empty", "absent", (2,), "all_reduce #4 of group 0"),
    Hang("wrong_peer", "absent", (0,), "recv from rank 0|barrier #4 of group 0"),
    Hang("saves_to_a_pipe", "absent", (0,), "barrier #4 of group 0"),
    Hang("one_microbatch_more", "deadlock", (1, 2), ""),
)

SETTINGS = ("gloo", "mpi", "torch 2.6")
"""Where they hang in make soak: this machine's torch under both backends, and Gloo of the node image."""


def in_setting(setting: str) -> list[Hang]:
    """The bugs that make soak has hang in a setting: one after the other of each kind, so that all kinds do.

    tests/unit/test_why.py judges the records of all, which `python -m tests.hangs.capture` makes again.
    """
    hanging = [hang for hang in HANGS if not hang.ends]
    by_kind = sorted((hang for hang in hanging if hang.backends == BOTH), key=lambda hang: hang.kind)
    turns = {hang: number % len(SETTINGS) for number, hang in enumerate(by_kind)}
    of_kind = Counter(hang.kind for hang in by_kind)
    mine = SETTINGS.index(setting)
    rare = {hang for hang in turns if of_kind[hang.kind] < len(SETTINGS)}
    return [hang for hang in hanging if turns.get(hang, 0) == mine or hang in rare]
