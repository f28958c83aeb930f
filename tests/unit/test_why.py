"""Why a job stalls: verdicts on golden records of real runs, and on what no test can cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.hosts.host_sample import GpuSample
from muster.deploy.core.job.result import RankExit
from muster.deploy.core.plan.launch_plan import PlacedRank
from muster.deploy.features.why.diagnosis import without_victims
from muster.deploy.features.why.gather import with_missing
from muster.deploy.features.why.hang_verdict import HangVerdict, explain, explain_crash
from muster.deploy.features.why.messages import (
    Child,
    End,
    Evidence,
    FileLock,
    GroupCount,
    Meeting,
    ProcessState,
    RecordedCall,
    StackLine,
)
from muster.deploy.features.why.positions import Rank
from tests.hangs.capture import RECORDS, judge, records_of
from tests.hangs.table import HANGS

GOLDEN = [
    (hang, backend)
    for hang in HANGS
    for backend in hang.backends
    if (RECORDS / f"{hang.program}-{backend}.json.gz").exists()
]
GALLERY = Path(__file__).parents[2] / "docs" / "why-gallery.md"


@pytest.mark.parametrize(("hang", "backend"), GOLDEN, ids=[f"{hang.program}-{name}" for hang, name in GOLDEN])
def test_a_seeded_bug_is_named_with_its_ranks_operation_and_line(hang: Any, backend: str) -> None:
    verdict = explain(records_of(RECORDS / f"{hang.program}-{backend}.json.gz"))
    assert not judge(hang, verdict), str(verdict)


def test_every_record_is_of_a_bug_in_the_table() -> None:
    named = {f"{hang.program}-{backend}.json.gz" for hang, backend in GOLDEN}
    assert {path.name for path in RECORDS.iterdir()} == named


@pytest.mark.parametrize(
    "hang", list(dict.fromkeys(hang for hang, _ in GOLDEN)), ids=lambda hang: str(hang.program)
)
def test_the_gallery_shows_the_verdict_on_each_bug(hang: Any) -> None:
    backend = next(backend for one, backend in GOLDEN if one == hang)
    verdict = explain(records_of(RECORDS / f"{hang.program}-{backend}.json.gz"))
    shown = f"    {verdict.headline}\n    {verdict.cause}\n"
    assert shown in GALLERY.read_text()


# -- ranks made up: four of them, of which the first three wait in all_reduce #9 for the last --

NOW = 1_000_100.0
READS = (
    StackLine("read", "torch/utils/data/loader.py", 3, False),
    StackLine("shards", "loader.py", 40, True),
)


LIKE = RecordedCall(
    *("d", "0", "call", 0, 0.0, "all_reduce"), where="train.py:88", dtype="float32", bytes=25_000_000, root=0
)


def entry(seq: int, at: float, state: Any = "d", **changes: Any) -> RecordedCall:
    return replace(LIKE, **{"state": state, "seq": seq, "number": seq, "at": at, "end": at + 0.1, **changes})


def rank(number: int, *, came: bool = True, waited: float = 41.0, pause: float = 1.0, **changes: Any) -> Rank:
    begun = NOW - waited
    entries = [entry(seq, begun - (9 - seq) * pause) for seq in range(1, 9)]
    if came:
        entries.append(entry(9, begun, "i", end=0.0))
    evidence = Evidence(
        now=NOW,
        groups=(GroupCount("0", "call", "0-3", len(entries)),),
        entries=tuple(entries),
        process=ProcessState(7, "S", resident=10**9, threads=4),
        frames=() if came else READS,
    )
    return Rank(number, f"node{number + 1}", replace(evidence, **changes))


def having(one: Rank, **changes: Any) -> Rank:
    """The same rank with other evidence; `last`: what is another in its last call."""
    assert one.evidence
    if "last" in changes:
        *entries, last = one.evidence.entries
        changes["entries"] = (*entries, replace(last, **changes.pop("last")))
    return replace(one, evidence=replace(one.evidence, **changes))


def leaves_at_6(one: Rank) -> Rank:
    """The rank that called another operation as #6."""
    assert one.evidence
    other: dict[str, Any] = {"op": "broadcast", "where": "train.py:14"}
    calls = (replace(each, **other) if each.seq == 6 else each for each in one.evidence.entries)
    return having(one, entries=tuple(calls))


def of_last(**changes: Any) -> HangVerdict:
    """The verdict where only the last rank has not come."""
    return explain([rank(0), rank(1), rank(2), rank(3, came=False, **changes)])


def test_who_waits_where_and_who_never_came_are_two_lines() -> None:
    verdict = of_last()
    assert verdict.hang
    assert verdict.headline == "ranks 0-2 wait in all_reduce #9 of group 0 (23.8 MiB, train.py:88)"
    assert verdict.cause == "rank 3 on node4 has not come: it reads data, in shards (loader.py:40), 42 s"
    assert verdict.where == ("loader.py:40",)


SYNCHRONIZES = (
    StackLine("synchronize", "torch/cuda/__init__.py", 1040, False),
    StackLine("step", "train.py", 9, True),
)
BUSY_GPU = GpuSample(3, utilisation=1.0, memory=7 << 30, memory_total=80 << 30)


@pytest.mark.parametrize(
    ("gpus", "state"),
    [
        ((), ""),
        ((BUSY_GPU,), ", while its GPU is busy"),
        ((replace(BUSY_GPU, utilisation=0.0),), ", while its GPU is idle"),
        ((replace(BUSY_GPU, utilisation=0.2),), ""),
        ((replace(BUSY_GPU, utilisation=None),), ""),
        ((BUSY_GPU, GpuSample(4, utilisation=0.0)), ", while its GPUs are busy"),
    ],
)
def test_a_rank_that_waits_for_its_gpu_has_the_gpus_state(gpus: tuple[GpuSample, ...], state: str) -> None:
    verdict = of_last(frames=SYNCHRONIZES, gpus=gpus, process=ProcessState(7, "R", busy=1.0))
    where = f"waits for its GPU, in step (train.py:9){state}"
    assert verdict.cause == f"rank 3 on node4 has not come: it {where}, 42 s"
    assert ("GPU 3 100 % busy, 7 GiB of 80 GiB" in verdict.evidence[-1]) is (BUSY_GPU in gpus)


PROBLEMS: dict[str, dict[str, Any]] = {
    "is stopped (SIGSTOP)": {"process": ProcessState(7, "T")},
    "is in the kernel (D, nfs_wait_bit_killable)": {"process": ProcessState(7, "D", "nfs_wait_bit_killable")},
    "is in the kernel (D, a disk or network file system?)": {"process": ProcessState(7, "D", "0")},
    "is swapping (2.8 GiB on the disk, 900 pages a second)": {
        "process": ProcessState(7, "D", faults=900.0, swapped=3 * 10**9)
    },
    "is gone: out of memory, the kernel chose it": {"process": None, "end": End(-9, out_of_memory=True)},
    "is gone: it ended with exit status 0": {"process": None, "end": End(0)},
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_the_process_shows_comes_before_its_stack(problem: str) -> None:
    verdict = of_last(**PROBLEMS[problem])
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("process", (3,), True)
    assert verdict.cause.startswith(f"rank 3 on node4 {problem}, after all_reduce #8"), verdict.cause


def test_a_wait_that_is_no_longer_than_those_before_is_no_hang() -> None:
    verdict = explain([rank(number, came=number < 3, waited=20.0, pause=8.0) for number in range(4)])
    assert (verdict.hang, verdict.kind) == (False, "slow")
    assert verdict.headline.startswith(
        "no hang: the longest wait is 20.0 s, and waits of up to 8.0 s were usual"
    )
    assert verdict.cause.startswith("rank 3 on node4 has not come: it reads data")
    longer = explain([rank(number, came=number < 3, waited=25.0, pause=8.0) for number in range(4)])
    assert longer.hang


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("the tensors differ in size", {"elements": 7}),
        ("the tensors differ in type", {"dtype": "float64"}),
        ("they name different roots", {"root": 1}),
        ("they call different operations as the same collective", {"op": "broadcast"}),
    ],
)
def test_the_rank_with_another_collective_is_the_odd_one(what: str, changes: dict[str, Any]) -> None:
    odd = having(rank(3), last={"where": "train.py:131", **changes})
    verdict = explain([rank(0), rank(1), rank(2), odd])
    assert (verdict.kind, verdict.culprits, verdict.where) == ("different", (3,), ("train.py:131",))
    assert verdict.cause == f"{what}: rank 3 differs from the others"
    assert verdict.headline.startswith("ranks 0-2 wait in all_reduce #9 of group 0 (")
    assert "; rank 3 on node4 is in " in verdict.headline


@pytest.mark.parametrize("waited", [0.2, 41.0])
def test_a_rank_that_left_the_order_and_went_on_is_named_with_the_first_other_call(waited: float) -> None:
    """As under MPI: the collective was complete, with wrong data."""
    first, odd, *others = (rank(number, waited=waited) for number in range(4))
    verdict = explain([first, leaves_at_6(odd), *others])
    assert verdict.headline == "rank 1 on node2 left the order of the others at #6 of group 0 (train.py:14)"
    assert verdict.cause.startswith("it called broadcast #6 of group 0 (23.8 MiB, train.py:14), the others")
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("different", (1,), waited > 1)


def test_of_two_ranks_that_left_one_order_neither_is_blamed() -> None:
    verdict = explain([rank(0), leaves_at_6(rank(1))])
    assert (verdict.kind, verdict.culprits) == ("different", (0, 1))
    assert verdict.headline == "the ranks call different operations as #6 of group 0"
    assert verdict.cause.startswith(
        "rank 0 on node1 called all_reduce #6 of group 0 (23.8 MiB, train.py:88); "
        "rank 1 on node2 called broadcast #6 of group 0 (23.8 MiB, train.py:14); what they have exchanged"
    )


def crashed(**changes: Any) -> list[Rank]:
    """Ranks that have ended in all_reduce #9, which the last one called otherwise."""
    ranks = [rank(number, process=None, end=End(-6 if number == 1 else 1)) for number in range(4)]
    ranks = [having(one, last={"state": "i" if one.number == 1 else "f"}) for one in ranks]
    return [*ranks[:3], having(ranks[3], last={"where": "train.py:131", **changes})]


def test_a_crash_after_unequal_calls_names_the_ranks_that_differ_and_both_lines() -> None:
    sizes = explain_crash(crashed(elements=7))
    assert sizes
    assert (sizes.kind, sizes.culprits, sizes.where) == ("different", (3,), ("train.py:131",))
    assert sizes.headline == (
        "ranks 0-2 were in all_reduce #9 of group 0 (0 x float32, train.py:88); "
        "rank 3 on node4 was in all_reduce #9 of group 0 (7 x float32, train.py:131)"
    )
    assert sizes.cause == "the tensors differ in size: rank 3 differs from the others"
    other = explain_crash(crashed(op="reduce_scatter_tensor"))
    assert other
    assert other.cause.startswith("they call different operations as the same collective: rank 3")


def test_a_crash_that_the_record_does_not_explain_is_left_to_the_last_lines() -> None:
    assert explain_crash(crashed()) is None
    assert explain_crash([]) is None


def test_a_root_that_no_record_has_is_no_other_root() -> None:
    ranks = [
        having(rank(number), last={"op": "gather", "root": 0 if number else None}) for number in range(4)
    ]
    assert "roots" not in str(explain(ranks))


SLEEPS = (StackLine("prepare", "train.py", 5, True),)
IN_TORCH = (StackLine("wait", "torch/futures/__init__.py", 9, False), StackLine("run", "train.py", 7, True))
BEGUN: dict[str, dict[str, Any]] = {
    "message": {"op": "irecv", "kind": "message", "peer": 1},
    "collective": {"op": "all_reduce", "kind": "call", "seq": 2},
    "work of the backend": {"op": "all_reduce", "kind": "work", "seq": 2, "state": "i"},
}


def begins(what: str, **changes: Any) -> list[Rank]:
    """Rank 0 has begun this and is in its own code; rank 1 waits for a message of rank 0."""
    first = entry(1, NOW - 90, number=0)
    begun = replace(entry(1, NOW - 60, "a", where="train.py:3", number=1), **{**BEGUN[what], **changes})
    count = GroupCount("0", begun.kind, "0-1", 2)
    process = ProcessState(7, "S")
    one = Evidence(now=NOW, groups=(count,), entries=(first, begun), frames=SLEEPS, process=process)
    receives = entry(1, NOW - 50, "i", op="recv", kind="message", peer=0, number=1)
    other = replace(one, groups=(replace(count, count=1),), entries=(first, receives), frames=())
    return [Rank(0, "node1", one), Rank(1, "node2", other)]


@pytest.mark.parametrize("what", BEGUN)
def test_an_operation_that_a_rank_has_only_begun_is_no_wait(what: str) -> None:
    verdict = explain(begins(what))
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("absent", (0,), (1,)), str(verdict)
    assert verdict.cause.startswith("rank 0 on node1 has not come: it is in prepare (train.py:5)")


def test_a_rank_that_waits_for_what_it_has_begun_is_part_of_a_circle() -> None:
    circle = explain(begins("message", state="i", wait=NOW - 55))
    assert (circle.kind, circle.culprits) == ("deadlock", (0, 1)), str(circle)
    (waits, other) = begins("message")
    assert explain([having(waits, frames=IN_TORCH), other]).kind == "deadlock"
    assert explain([having(waits, frames=(SLEEPS[0]._replace(line=3),)), other]).kind == "deadlock"


def test_a_wait_is_as_old_as_the_wait_and_not_as_the_message() -> None:
    ranks = begins("message", state="i", wait=NOW - 2)
    verdict = explain([ranks[0], having(ranks[1], entries=(), frames=SLEEPS)])
    assert not verdict.hang
    assert verdict.seconds == pytest.approx(2)


def test_a_stall_that_the_launch_has_noticed_needs_no_other_sign() -> None:
    ranks = [rank(number, came=number < 3, waited=3.0) for number in range(4)]
    assert not explain(ranks).hang
    assert explain(ranks, stalled=True).hang


def test_a_collective_that_timed_out_in_ranks_that_are_gone_is_still_explained() -> None:
    gone = [having(rank(number), process=None, end=End(1), last={"state": "f"}) for number in range(3)]
    verdict = explain([*gone, rank(3, came=False)], stalled=True)
    assert verdict.culprits == (3,)
    assert verdict.headline.startswith("ranks 0-2 wait in all_reduce #9")


UNANSWERED = ProcessState(7, "S", unanswered=("10.0.0.3:29500",), addresses=("10.0.0.2",))
PEER = ProcessState(7, "S", addresses=("10.0.0.3",))


def test_where_every_rank_has_come_and_data_gets_no_answer_the_network_is_the_cause() -> None:
    verdict = explain([rank(0), rank(1, process=UNANSWERED), rank(2, process=PEER), rank(3)])
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("network", (), True)
    assert verdict.cause == (
        "every rank has come, but rank 1 on node2 has no answer from 10.0.0.3:29500: "
        "look at the network between the hosts"
    )


def one_behind(state: Any = "i") -> list[Rank]:
    """Rank 3 is in all_reduce #8, which every rank has begun; the others have ended it, and wait in #9."""
    behind = rank(3, came=False, frames=IN_TORCH, process=PEER)
    return [rank(0), rank(1, process=UNANSWERED), rank(2), having(behind, last={"state": state, "end": 0.0})]


def test_a_rank_to_which_data_was_lost_is_not_blamed_by_those_that_have_sent_it() -> None:
    verdict = explain(one_behind())
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("network", (), True)
    assert verdict.headline.startswith("rank 3 waits in all_reduce #8 of group 0")
    assert "rank 1 on node2 has no answer from 10.0.0.3:29500" in verdict.cause
    assert explain([having(one, process=PEER) for one in one_behind()]).kind == "present"
    *others, behind = one_behind()
    stopped = explain([*others, having(behind, process=ProcessState(7, "T"))])
    assert (stopped.kind, stopped.culprits) == ("process", (3,))


def test_where_every_rank_has_come_and_all_data_is_answered_the_network_is_not_blamed() -> None:
    verdict = explain([rank(number) for number in range(4)])
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("present", (), True)
    assert "network" not in str(verdict)
    assert verdict.cause.startswith("every rank has come, but it does not end, and no TCP connection")


def test_the_network_is_not_blamed_where_a_server_outside_of_the_job_gives_no_answer() -> None:
    verdict = explain([rank(0), rank(1, process=UNANSWERED), rank(2), rank(3)])
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("present", (), True)
    assert verdict.cause == (
        "every rank has come, but it does not end; rank 1 on node2 has no answer from 10.0.0.3:29500, "
        "which is not an address of another rank"
    )


def test_the_network_is_not_blamed_for_a_wait_that_is_no_hang() -> None:
    verdict = explain([rank(number, waited=2.0, process=UNANSWERED) for number in range(4)])
    assert (verdict.kind, verdict.hang, verdict.cause) == ("slow", False, "every rank has come")
    assert "network" not in str(verdict)


def meets(*given: tuple[str, int, int], waited: float = 41.0) -> HangVerdict:
    """The verdict on ranks in init_process_group that gave these."""
    ranks = []
    for number, meeting in enumerate(given):
        begins = entry(1, NOW - waited, "i", op="init_process_group", group="setup", bytes=0, end=0.0)
        called = replace(begins, where=f"train.py:{number}", meets=Meeting(*meeting))
        groups = (GroupCount("setup", "call", "", 1),)
        ranks.append(rank(number, entries=(called,), groups=groups))
    return explain(ranks)


HERE = "node1:29500"
UNMET = {
    "expects 4 ranks, but the job has 3": [(HERE, 4, 0), (HERE, 4, 1), (HERE, 4, 2)],
    "expects 1 rank, but the job has 2": [(HERE, 1, 0), (HERE, 1, 0)],
    "the size of the process group: ranks 0-1 expect 3 ranks, rank 2 on node3 expects 4 ranks": [
        (HERE, 3, 0),
        (HERE, 3, 1),
        (HERE, 4, 2),
    ],
    "the address of the process group: ranks 0,2 meet at node1:29500, rank 1 on node2 meets at node1:1": [
        (HERE, 3, 0),
        ("node1:1", 3, 1),
        (HERE, 3, 2),
    ],
    "they meet at localhost:12355, which is another address on each of node[1-3]": [
        ("localhost:12355", 3, number) for number in range(3)
    ],
    "several ranks meet under the same number: ranks 0,2 each as rank 0": [
        (HERE, 3, 0),
        (HERE, 3, 1),
        (HERE, 3, 0),
    ],
}


@pytest.mark.parametrize("cause", UNMET)
def test_ranks_that_cannot_meet_are_told_by_what_they_gave(cause: str) -> None:
    verdict = meets(*UNMET[cause])
    assert (verdict.kind, verdict.hang) == ("unmet", True)
    assert cause in verdict.cause
    assert verdict.culprits == {"size": (2,), "address": (1,)}.get(cause.split()[1], ())
    assert "network" not in str(verdict)
    assert not meets(*UNMET[cause], waited=2.0).hang


def test_a_rank_of_another_size_is_named_also_where_the_others_have_met_without_it() -> None:
    ranks = []
    for number, size in enumerate((3, 3, 4)):
        met = replace(
            entry(1, NOW - 60, op="init_process_group", group="setup"), meets=Meeting(HERE, size, number)
        )
        barrier = entry(1, NOW - 41, "i", op="barrier", bytes=0, end=0.0)
        calls = (met, barrier) if size == 3 else (replace(met, state="i", end=0.0),)
        groups = [GroupCount("setup", "call", "", 1), GroupCount("0", "call", "", 1)]
        ranks.append(rank(number, entries=calls, groups=tuple(groups[: len(calls)])))
    verdict = explain(ranks)
    assert (verdict.kind, verdict.culprits) == ("unmet", (2,))
    assert "ranks 0-1 expect 3 ranks, rank 2 on node3 expects 4 ranks" in verdict.cause


def ended(number: int, code: int, at: float) -> RankExit:
    return RankExit(PlacedRank(number, 0, f"node{number + 1}"), code, at)


def after_failure(ranks: list[Rank]) -> HangVerdict:
    """The verdict after rank 0 has failed and mpirun, or Muster, has ended the others by SIGTERM."""
    failed = ended(0, 1, 10.0)
    ends = {0: failed, **{rank.number: ended(rank.number, -15, 10.1) for rank in ranks[1:]}}
    gone = [
        having(each, process=None, frames=(), end=End(ends[number].code)) for number, each in enumerate(ranks)
    ]
    return explain(without_victims(gone, failed.as_failure(), ends), stalled=True)


def test_ranks_that_a_launcher_ended_after_the_failure_are_not_its_cause() -> None:
    ranks = []
    for number in range(2):
        meeting = Meeting("localhost:12355", 2, number)
        called = entry(1, NOW - 41, "i" if number else "f", op="init_process_group", group="setup", bytes=0)
        groups = (GroupCount("setup", "call", "", 1),)
        ranks.append(rank(number, entries=(replace(called, meets=meeting),), groups=groups))
    verdict = after_failure(ranks)
    assert (verdict.kind, verdict.culprits) == ("unmet", ())
    assert "use MASTER_ADDR and MASTER_PORT as Muster sets them" in verdict.cause
    assert "SIGTERM" not in str(verdict)


def test_a_rank_that_did_not_come_before_a_launcher_ended_it_is_the_cause_without_its_signal() -> None:
    verdict = after_failure([having(rank(0), last={"state": "f"}), rank(1, came=False)])
    assert verdict.culprits == (1,)
    assert verdict.cause == (
        "rank 1 on node2 has not come: it ended with the job, so its stack is unknown; "
        "its last was all_reduce #8 of group 0 (23.8 MiB, train.py:88)"
    )
    assert "SIGTERM" not in str(verdict)


def test_ranks_that_met_when_they_tried_again_are_not_blamed() -> None:
    ranks = []
    for number in range(2):
        first = entry(1, NOW - 90, "f", op="init_process_group", group="setup")
        calls = (
            replace(first, meets=Meeting(f"node1:{number}", 2, number)),
            replace(first, seq=2, state="d"),
        )
        again = replace(calls[1], meets=Meeting(HERE, 2, number))
        ranks.append(rank(number, entries=(calls[0], again), groups=(GroupCount("setup", "call", "", 2),)))
    assert explain(ranks, stalled=True).kind == "nothing"
    assert explain_crash(ranks) is None


def test_ranks_that_fit_together_are_not_blamed_while_they_meet() -> None:
    assert meets((HERE, 2, 0), (HERE, 2, 1)).kind == "present"
    assert meets(("", -1, -1), (HERE, 2, 1)).kind == "present"


def test_of_ranks_that_have_all_come_one_that_is_held_up_is_the_cause() -> None:
    reads = rank(2, process=ProcessState(7, "D", "folio_wait_bit"))
    verdict = explain([rank(0), rank(1), reads, rank(3)])
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("process", (2,), True)
    assert verdict.cause == "every rank has come, but rank 2 on node3 is in the kernel (D, folio_wait_bit)"


STILL: dict[str, Any] = {"entries": (), "groups": (), "missing": "no record"}


def test_without_a_record_only_stacks_are_compared_and_the_verdict_says_so() -> None:
    waits = (StackLine("wait", "train.py", 9, True),)
    bare: dict[str, Any] = STILL | {"missing": "it has not imported torch.distributed"}
    ranks = [rank(number, frames=waits, **bare) for number in range(3)] + [rank(3, frames=READS, **bare)]
    verdict = explain(ranks)
    assert (verdict.kind, verdict.culprits, verdict.hang) == ("stacks", (3,), False)
    assert (
        verdict.headline == "ranks 0-2 are in wait (train.py:9); rank 3 reads data, in shards (loader.py:40)"
    )
    assert verdict.cause.startswith(
        "only stacks and /proc are available (it has not imported torch.distributed)"
    )


def test_a_rank_whose_stack_cannot_be_read_is_not_called_elsewhere() -> None:
    ranks = [rank(number, frames=READS, **STILL) for number in range(3)]
    unread = rank(3, frames=(), error="Permission denied", **STILL)
    verdict = explain([*ranks, unread], stalled=True)
    assert verdict.culprits == (), str(verdict)
    assert "rank 3 cannot be read (Permission denied)" in verdict.headline
    elsewhere = rank(4, frames=SLEEPS, **STILL)
    assert explain([*ranks, unread, elsewhere], stalled=True).culprits == (4,)


LOCK = FileLock("/data/index.lock", 9, "python3 prepare.py")
WORKERS = (Child(8, "pt_data_worker", -9), Child(9, "pt_data_worker"))
HOLDERS: dict[str, dict[str, Any]] = {
    "waits for the lock of /data/index.lock, which process 9 (python3 prepare.py) has, in shards": {
        "file_lock": LOCK
    },
    "waits for the lock of /data/index.lock, which rank 0 has, in shards": {
        "file_lock": replace(LOCK, rank=0)
    },
    "waits for the lock of /data/index.lock, which a process of another container or host has": {
        "file_lock": replace(LOCK, pid=0)
    },
    "reads data, in shards (loader.py:40); its process 8 (pt_data_worker) has ended: SIGKILL (9)": {
        "children": WORKERS
    },
}


@pytest.mark.parametrize("text", HOLDERS)
def test_who_holds_up_a_rank_is_named(text: str) -> None:
    assert f"has not come: it {text}" in of_last(process=ProcessState(7, "S", **HOLDERS[text])).cause


def test_the_only_process_that_a_rank_waits_for_is_named() -> None:
    waits = (StackLine("wait", "subprocess.py", 9, False), StackLine("run", "train.py", 7, True))
    one = ProcessState(7, "S", children=(Child(8, "sleep 1000"),))
    text = "it waits for a program that it started (process 8: sleep 1000), in run (train.py:7)"
    assert text in of_last(process=one, frames=waits).cause
    two = replace(one, children=(*one.children, Child(9, "sleep 1")))
    assert "process 8" not in of_last(process=two, frames=waits).cause
    assert "process 8" not in of_last(process=one).cause


DOING: dict[str, tuple[StackLine, ...]] = {
    "are in run (train.py:7)": (StackLine("run", "train.py", 7, True),),
    "read data, in run (train.py:7)": (READS[0], StackLine("run", "train.py", 7, True)),
    "save or load a checkpoint, in run (train.py:7)": (
        StackLine("save", "torch/serialization.py", 9, False),
        StackLine("run", "train.py", 7, True),
    ),
    "wait for another thread, in run (train.py:7)": (
        StackLine("get", "queue.py", 9, False),
        StackLine("run", "train.py", 7, True),
    ),
    "run no Python": (),
}


@pytest.mark.parametrize("doing", DOING)
def test_what_several_ranks_do_is_in_the_plural(doing: str) -> None:
    ranks = [rank(number, frames=DOING[doing], **STILL) for number in range(3)]
    assert explain(ranks).headline == f"ranks 0-2 {doing}"


def test_what_has_become_of_several_ranks_is_in_the_plural() -> None:
    stopped = [rank(number, came=False, process=ProcessState(7, "T")) for number in (2, 3)]
    verdict = explain([rank(0), rank(1), *stopped])
    assert verdict.cause.startswith("ranks 2-3 are stopped (SIGSTOP), after all_reduce #8")
    assert verdict.summary == "ranks 2-3 are stopped (SIGSTOP)"
    late = explain([rank(0), rank(1), rank(2, came=False), rank(3, came=False)])
    assert late.summary.endswith(": each reads data, in shards (loader.py:40)")


def test_a_host_that_gives_no_evidence_is_the_culprit() -> None:
    places = {0: "node1", 1: "node1", 2: "node2", 3: "node4"}
    verdict = explain(with_missing([rank(0), rank(1), rank(2)], places, ["node4"]))
    assert verdict.culprits == (3,)
    assert "cannot be asked: node4 does not answer" in verdict.cause


def test_a_rank_of_which_its_host_has_no_process_is_the_culprit_and_not_the_network() -> None:
    """So in a job that is about to end: the agent of node3 has ended before that of node1."""
    places = {0: "node1", 1: "node1", 2: "node3"}
    left = [rank(number, process=UNANSWERED) for number in (0, 1)]
    verdict = explain(with_missing(left, places, []))
    assert (verdict.kind, verdict.culprits) == ("process", (2,))
    assert verdict.cause == "rank 2 on node3 is not running"
    assert "network" not in str(verdict)


def test_the_size_of_a_group_is_compared_with_all_ranks_of_the_job() -> None:
    begins = entry(1, NOW - 41, "i", op="init_process_group", group="setup", bytes=0, end=0.0)
    calls = [replace(begins, meets=Meeting(HERE, 3, number)) for number in range(2)]
    came = [
        rank(number, entries=(call,), groups=(GroupCount("setup", "call", "", 1),))
        for number, call in enumerate(calls)
    ]
    verdict = explain(with_missing(came, dict.fromkeys(range(3), "node1"), []))
    assert (verdict.kind, verdict.culprits) == ("process", (2,))
    assert "expects" not in str(verdict)


@pytest.mark.parametrize("said", ["0-126/2", "?"])
def test_ranks_outside_of_a_group_are_not_awaited_in_it(said: str) -> None:
    """128 ranks, of which the even ones are a group: named one after the other they have 380 letters."""
    inside = [rank(number, groups=(GroupCount("0", "call", said, 9),)) for number in range(0, 126, 2)]
    late = rank(126, came=False, groups=(GroupCount("0", "call", said, 8),))
    outside = [rank(number, groups=(), entries=()) for number in range(1, 128, 2)]
    assert explain([*inside, late, *outside]).culprits == (126,)


def test_a_group_beyond_those_that_a_record_counts_has_what_was_begun_last() -> None:
    ranks = [rank(0, groups=()), rank(1, groups=()), rank(2, groups=(), came=False)]
    assert explain(ranks).culprits == (2,)


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    ranks = []
    for number in range(4):
        said = GroupCount("0", "call", "0-1" if number < 2 else "2-3", 8 if number == 1 else 9)
        ranks.append(rank(number, came=number != 1, groups=(said,)))
        if number > 1:  # the other group makes something else, and is done with it
            entries = tuple(entry(seq, NOW - 60 + seq, op="broadcast") for seq in range(1, 10))
            ranks[number] = rank(number, groups=(said,), entries=entries)
    verdict = explain(ranks)
    assert (verdict.kind, verdict.culprits) == ("absent", (1,))
    assert verdict.headline.startswith("rank 0 waits in all_reduce #9 of group 0 of ranks 0-1 (")


def test_what_a_rank_says_of_itself_cannot_reach_the_terminal() -> None:
    evil = having(rank(0), last={"where": "\x1b]0;evil\x07.py:1", "op": "all\x1b[2Jreduce"})
    assert "\x1b" not in str(explain([evil, rank(1), rank(2), rank(3, came=False)]))


def test_no_rank_at_all_is_nothing_to_explain() -> None:
    assert not explain([]).hang


def test_a_thousand_ranks_are_judged_as_four_are() -> None:
    ranks = [replace(rank(number, came=number != 700), number=number) for number in range(1000)]
    verdict = explain(
        [
            replace(one, evidence=replace(one.evidence, groups=(GroupCount("0", "call", "0-999", count),)))
            for one, count in zip(ranks, [8 if number == 700 else 9 for number in range(1000)], strict=True)
            if one.evidence
        ]
    )
    assert verdict.culprits == (700,)
    assert verdict.headline.startswith("ranks 0-699,701-999 wait in all_reduce #9")
