"""The recorder in a rank, with a made-up torch.distributed: what it notes, and that nothing depends on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core import agent
from muster.deploy.core.connect.channel import MOST_LINE
from muster.deploy.core.job.planning import rank_programs
from muster.deploy.core.wire.frames import MOST_VALUES
from muster.deploy.features import why
from muster.deploy.features.why.in_rank.muster_ring import ENTRIES, SLOT, Ring
from muster.deploy.features.why.on_host.evidence import collect
from muster.deploy.features.why.on_host.records import MOST_ENTRIES, read_ring, read_trace
from tests.waiting import wait_until

PROGRAMS = rank_programs(Path(agent.__file__).parent) | rank_programs(Path(why.__file__).parent)
# A package `torch` with as much of torch.distributed as the recorder touches.
C10D = """
class Work:
    def wait(self): pass
class World:
    default_pg = None
    pg_names, pg_group_ranks = {}, {}
_world = World()
def init_process_group(backend):
    _world.default_pg = "world"
    _world.pg_names["world"], _world.pg_group_ranks["world"] = "0", {0: 0, 1: 1, 3: 2}
def all_reduce(tensor, op=None, group=None, async_op=False):
    if tensor.size > 1000: raise ValueError("too large")
    if async_op: return Work()
def broadcast(tensor, src=None, group=None, async_op=False, group_src=None): pass
def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None): pass
def all_gather_single(output_tensor, input_tensor, group=None, async_op=False): pass
def reduce_scatter_single(output, input, op=None, group=None, async_op=False): pass
def recv(tensor, src=None, group=None, tag=0): all_reduce(tensor)
"""
PROGRAM = """
import os, sys, time
assert "torch" not in sys.modules
import torch.distributed as dist
class Tensor:
    dtype = "torch.float32"
    def __init__(self, size): self.size = size
    def numel(self): return self.size
    def element_size(self): return 4
dist.init_process_group("gloo")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in_rank").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "in_rank" / name).write_text(text)
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.6.0'\n")
    (package / "__init__.py").write_text("from .distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text(C10D)
    return tmp_path


def start(folder: Path, program: str, *, record: str = "muster_start") -> subprocess.Popen[str]:
    (folder / "train.py").write_text(PROGRAM + program)
    path = os.pathsep.join([str(folder / "in_rank"), str(folder)])
    env = {"RANK": "1", "MUSTER_AGENT": str(folder), "PYTHONPATH": path, "MUSTER_START": record}
    return subprocess.Popen(
        [sys.executable, "train.py"], cwd=folder, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True
    )


def run(folder: Path, program: str, *, record: str = "muster_start") -> str:
    with start(folder, program, record=record) as rank:
        return rank.communicate(timeout=100)[0]


# DDP as far as it is Python, with a Reducer as torch 2.6 has it.
DDP = """
import torch, types
class Reducer:
    def prepare_for_backward(self, outputs): pass
torch._C = types.SimpleNamespace(_distributed_c10d=types.SimpleNamespace(Reducer=Reducer))
torch.autograd = types.SimpleNamespace(backward=lambda loss: print("backward"))
class DDP:
    process_group, synchronised = "world", True
    def forward(self):
        if self.synchronised:
            Reducer().prepare_for_backward([])
"""


def test_a_backward_pass_of_ddp_is_a_collective_where_torch_records_none(folder: Path) -> None:
    path = folder / "torch" / "__init__.py"
    path.write_text(path.read_text() + DDP)
    said = run(
        folder,
        "import torch\n"
        "model = torch.DDP()\n"
        "model.forward()\n"
        "torch.autograd.backward(0)\n"
        "torch.autograd.backward(0)  # of no DDP\n"
        "model.synchronised = False\n"
        "model.forward()\n"
        "torch.autograd.backward(0)  # under no_sync\n"
        "dist.all_reduce(Tensor(6))\n",
    )
    assert said == "backward\n" * 3
    noted = read_ring(str(folder / "ring-1"))["entries"][1:]
    assert [(entry["op"], entry["group"], entry["seq"], entry["state"]) for entry in noted] == [
        ("all_reduce", "0", 1, "d"),
        ("all_reduce", "0", 2, "d"),
    ]
    assert noted[0]["where"] == "train.py:14"


def test_each_call_is_noted_with_its_group_size_state_and_line(folder: Path) -> None:
    run(
        folder,
        "dist.all_reduce(Tensor(6))\n"
        "dist.all_reduce(Tensor(7), async_op=True)\n"
        "dist.recv(Tensor(8), 3, tag=5)\n"
        "try: dist.all_reduce(tensor=Tensor(2000))\n"
        "except ValueError as error: print(error)\n",
    )
    record = read_ring(str(folder / "ring-1"))
    first, begun, received, failed = record["entries"][1:]
    assert (first["op"], first["group"], first["seq"], first["state"]) == ("all_reduce", "0", 1, "d")
    assert (first["where"], first["dtype"]) == ("train.py:11", "float32")
    assert (first["elements"], first["bytes"]) == (6, 24)
    assert first["end"] >= first["at"] > 1e9
    assert (begun["state"], begun["seq"], failed["state"], failed["seq"]) == ("a", 2, "f", 3)
    assert (received["kind"], received["peer"], received["tag"], received["seq"]) == ("message", 3, 5, 1)
    groups = {(group["group"], group["kind"]): (group["ranks"], group["count"]) for group in record["groups"]}
    assert groups == {("setup", "call"): ("", 1), ("0", "call"): ("0-1,3", 3), ("0", "message"): ("0-1,3", 1)}


def test_a_rank_waits_for_what_it_has_begun_only_in_the_wait(folder: Path) -> None:
    said = run(
        folder,
        "ring = sys.modules['muster_recorder'].recorder._ring\n"
        "def state(): return chr(ring._memory[512 * 67 + 32])\n"
        "dist.distributed_c10d.Work.wait = lambda self: print('waits', state())\n"
        "work = dist.all_reduce(Tensor(7), async_op=True)\n"
        "print('begun', state())\n"
        "work.wait()\n"
        "print('then', state())\n",
    )
    assert said.splitlines() == ["begun a", "waits i", "then d"]
    (waited,) = read_ring(str(folder / "ring-1"))["entries"][1:]
    assert waited["wait"] >= waited["end"] >= waited["at"] > 1e9


def test_a_work_that_was_freed_is_not_taken_for_a_later_one(folder: Path) -> None:
    said = run(
        folder,
        "recorder = sys.modules['muster_recorder'].recorder\n"
        "for _ in range(5000): dist.all_reduce(Tensor(7), async_op=True)\n"
        "kept = [dist.distributed_c10d.Work() for _ in range(50)]  # at addresses of freed ones\n"
        "print({recorder._entry_of(each) for each in kept}, len(recorder._works) <= 4096)\n",
    )
    assert said == "{0} True\n"


def test_a_wait_for_what_was_begun_long_ago_changes_no_later_entry(folder: Path) -> None:
    run(
        folder,
        "work = dist.all_reduce(Tensor(7), async_op=True)\n"
        f"for _ in range({ENTRIES}): dist.all_reduce(Tensor(6))\n"
        "work.wait()\n",
    )
    entries = read_ring(str(folder / "ring-1"), ENTRIES)["entries"]
    assert len(entries) == ENTRIES
    assert not any(entry["wait"] for entry in entries)


MEETS: dict[str, list[Any]] = {
    "": ["node1:29500", 3, 1],
    ", world_size=4": ["node1:29500", 4, 1],
    ", 'tcp://node2:7', rank=2, world_size=5": ["node2:7", 5, 2],
    ", 'tcp://node2:7?rank=2&world_size=5'": ["node2:7", 5, 2],
    ", init_method='file:///nfs/store', world_size=4, rank=0": ["/nfs/store", 4, 0],
    ", store=object(), world_size=2, rank=1": ["", 2, 1],
}


def test_the_start_of_a_group_is_noted_with_its_address_size_and_number(folder: Path) -> None:
    path = folder / "torch" / "distributed" / "distributed_c10d.py"
    given = "backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None"
    path.write_text(path.read_text().replace("init_process_group(backend)", f"init_process_group({given})"))
    environment = "os.environ.update(MASTER_ADDR='node1', MASTER_PORT='29500', WORLD_SIZE='3', RANK='1')\n"
    run(folder, environment + "".join(f"dist.init_process_group('gloo'{words})\n" for words in MEETS))
    noted = read_ring(str(folder / "ring-1"))["entries"][1:]
    assert [entry["meets"] for entry in noted] == [*MEETS.values()]


def test_an_argument_that_torch_refuses_is_no_error_of_the_recorder(folder: Path) -> None:
    assert run(folder, "dist.init_process_group(world_size='many')\nprint('on')\n") == ""
    path = folder / "torch" / "distributed" / "distributed_c10d.py"
    path.write_text(path.read_text().replace("(backend)", "(backend, world_size=-1)"))
    assert run(folder, "dist.init_process_group('gloo', 'many')\nprint('on')\n") == "on\n"
    assert "meets" not in read_ring(str(folder / "ring-1"))["entries"][-1]


def test_the_root_is_noted_as_torch_takes_it(folder: Path) -> None:
    run(
        folder,
        "dist.gather(Tensor(6), gather_list=[])\n"
        "dist.gather(Tensor(6), dst=0)\n"
        "dist.gather(Tensor(6), dst=3)\n"
        "dist.gather(Tensor(6), group_dst=2)  # which is rank 3\n"
        "dist.broadcast(Tensor(6), 1)\n"
        "dist.all_reduce(Tensor(6))\n",
    )
    noted = read_ring(str(folder / "ring-1"))["entries"][1:]
    assert [entry.get("root") for entry in noted] == [0, 0, 3, 3, 1, None]


def test_the_collectives_that_fsdp_calls_since_torch_2_13_are_noted(folder: Path) -> None:
    run(
        folder,
        "dist.all_gather_single(Tensor(8), Tensor(4))\n"
        "dist.reduce_scatter_single(output=Tensor(4), input=Tensor(8))\n",
    )
    noted = read_ring(str(folder / "ring-1"))["entries"][1:]
    assert [(entry["op"], entry["elements"]) for entry in noted] == [
        ("all_gather_single", 4),
        ("reduce_scatter_single", 8),
    ]


def test_the_ring_keeps_the_last_and_the_count_is_of_all(folder: Path) -> None:
    run(folder, f"for size in range({2 * ENTRIES}): dist.all_reduce(Tensor(size % 9))")
    record = read_ring(str(folder / "ring-1"))
    assert record["groups"][1]["count"] == record["entries"][-1]["seq"] == 2 * ENTRIES
    assert len(record["entries"]) == MOST_ENTRIES


def test_a_rank_that_is_stopped_or_killed_leaves_what_it_was_in(folder: Path) -> None:
    hang = "import time\ndist.all_reduce(type('T', (Tensor,), {'size': property(lambda s: time.sleep(1000), "
    hang += "lambda s, v: None), 'numel': lambda s: 5})(5))\n"
    with start(folder, hang) as rank:
        wait_until(lambda: len(read_ring(str(folder / "ring-1")).get("entries", ())) > 1, "the call")
        record = read_ring(str(folder / "ring-1"))
        rank.send_signal(signal.SIGKILL)
    assert record["entries"][-1]["state"] == "i"
    assert read_ring(str(folder / "ring-1"))["entries"] == record["entries"]


def test_a_forked_child_writes_nothing(folder: Path) -> None:
    child = "if os.fork() == 0:\n    dist.all_reduce(Tensor(1)); os._exit(0)\nos.wait()\n"
    run(folder, f"{child}dist.all_reduce(Tensor(2))")
    assert [entry["elements"] for entry in read_ring(str(folder / "ring-1"))["entries"]] == [0, 2]


def test_what_the_recorder_cannot_note_still_runs(folder: Path) -> None:
    program = (
        "dist._world = dist.distributed_c10d._world = None\ndist.all_reduce(Tensor(1))\nprint('went on')"
    )
    assert run(folder, program) == "went on\n"


def test_without_record_a_rank_is_as_it_was(folder: Path) -> None:
    program = "print(hasattr(dist.all_reduce, '__wrapped__'), 'TORCH_FR_BUFFER_SIZE' in os.environ)"
    assert run(folder, program, record="") == "False False\n"
    assert run(folder, program) == "True True\n"
    (folder / "ring-1").unlink()
    assert "torch.distributed" in read_ring(str(folder / "ring-1"))["missing"]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (range(4), "0-3"),
        ([0, 1, 3], "0-1,3"),
        (range(0, 512, 8), "0-504/8"),
        ([*range(0, 8, 2), 9, 10, 30], "0-6/2,9-10,30"),
        ([5, 3, 1], "5,3,1"),
        ([number * number for number in range(100)], "?"),
    ],
)
def test_the_members_of_a_group_fit_into_its_slot(tmp_path: Path, ranks: Sequence[int], said: str) -> None:
    ring = Ring(str(tmp_path / "ring-1"))
    group = ring.group("call", "1", [*ranks])
    ring.begin(group, b'"op":"barrier"}\n')
    (read,) = read_ring(str(tmp_path / "ring-1"))["groups"]
    assert (read["ranks"], read["count"]) == (said, 1)


CHARACTERS = ("n", "ä", "界", "\N{SNAIL}", '"', "\x01", "\udcff")


def test_the_longest_names_in_any_script_fit_into_their_slots(folder: Path) -> None:
    run(
        folder,
        "world = sys.modules['torch.distributed.distributed_c10d']._world\n"
        "recorder = sys.modules['muster_recorder'].recorder\n"
        "words = 'recorder.begin_work(\"world\", long, [Tensor(1 << 50)])'\n"
        f"for long in {[300 * character for character in CHARACTERS]!a}:\n"
        "    world.pg_names['world'] = long\n"
        "    exec(compile(words, long + '.py', 'exec'))\n",
    )
    read = read_ring(str(folder / "ring-1"))
    assert len(read["entries"]) == 1 + len(CHARACTERS)
    for character, counted, entry in zip(CHARACTERS, read["groups"][1:], read["entries"][1:], strict=True):
        long = character * 300
        assert counted["group"] == entry["group"]
        assert (long.startswith(entry["group"]), len(entry["group"]) >= 10) == (True, True)
        assert (long.startswith(entry["op"]), len(entry["op"]) >= 6) == (True, True)
        assert entry["where"].endswith(f"{character}.py:1")
        assert (entry["kind"], entry["elements"]) == ("work", 1 << 50)


def test_the_evidence_of_many_ranks_fits_into_one_answer(tmp_path: Path) -> None:
    ranks = 512
    ring = Ring(str(tmp_path / "ring-0"))
    group = ring.group("call", "0", range(ranks))
    for _ in range(ENTRIES):
        what = b'"op":"all_reduce","where":"%s","dtype":"float32","elements":1000000,"bytes":4000000}\n'
        ring.begin(group, what % (b"x" * 40))
    for number in range(1, ranks):
        (tmp_path / f"ring-{number}").hardlink_to(tmp_path / "ring-0")
    known: Any = SimpleNamespace(programs=dict, ends={number: {"code": 1} for number in range(ranks)})
    line = json.dumps(collect("", known, str(tmp_path), "", recorded=True, gpus={}))
    assert len(line) < MOST_LINE
    assert line.count(":") < MOST_VALUES


def test_a_record_that_is_not_ours_is_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "ring-0"
    path.write_bytes(b'{"pid": 7}'.ljust(SLOT) + b"\xff[[[[".ljust(SLOT) + b'{"number": "x"}'.ljust(SLOT))
    assert read_ring(str(path)) == {"pid": 7, "groups": [], "entries": []}
    assert read_trace(str(path)) == []
