"""Launches from Python: keywords, the values of functions, and their errors."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import muster
from muster.deploy.api import functions
from muster.deploy.api import functions as job
from muster.deploy.api import keywords as flags
from muster.deploy.api.functions import (
    JobError,
    JobResult,
    LaunchError,
    RankEnd,
    RankError,
    read_result,
    write_call,
)
from muster.deploy.cli.commands import load
from muster.deploy.core.errors import MusterError, UnfitError, UsageError
from muster.deploy.core.plan.spec import Program
from muster.deploy.features.returned_values.driver import CALL, PYTHON, name_of
from muster.deploy.features.returned_values.wire import decoded, encoded
from tests.unit.plans import make_plan

LAUNCH = load("launch")


def test_every_flag_of_a_launch_is_a_keyword_of_its_type() -> None:
    hints = {**get_type_hints(flags.LaunchFlags), "script": flags.Path}
    assert {flag.field for flag in LAUNCH.flags.values()} == hints.keys()
    for flag in LAUNCH.flags.values():
        kinds = {*get_args(hints[flag.field])} or {hints[flag.field]}
        if flag.kind in {bool, int}:
            assert kinds == {flag.kind}
        elif flag.kind is tuple:
            assert Sequence[str] in kinds
        elif flag.choices:
            assert kinds <= {*flag.choices}
        else:
            assert str in kinds, flag.field
        assert (os.PathLike[str] in kinds) == flag.is_path, flag.field


def test_keywords_become_the_values_of_a_command_line() -> None:
    given = {"hosts": Path("h.txt"), "np": 2, "env": {"A": "1"}, "rank": 0, "slurm": True, "detach": False}
    expected = {
        "--hosts": "h.txt",
        "--np": 2,
        "--env": ("A=1",),
        "--rank": "0",
        "--slurm": "here",
        "--detach": False,
    }
    assert job.values_of(LAUNCH, {**given, "image": None}) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"np": 0}, "np 0: write 1 or more"),
        ({"np": "2"}, 'np needs a whole number, got "2"'),
        ({"np": True}, "np needs a whole number, got true"),
        ({"detach": 1}, "detach needs true or false, got 1"),
        ({"hosts": ""}, "hosts is empty; give it a value, or leave it out"),
        ({"launcher": "mpi"}, "launcher mpi: must be one of mpirun, torchrun"),
        ({"host": "x"}, "a launch has no keyword host; did you mean hosts?"),
    ],
)
def test_a_wrong_keyword_is_refused_as_on_the_command_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        job.values_of(LAUNCH, given)
    assert str(caught.value) == said


def test_a_call_takes_no_program() -> None:
    with pytest.raises(UsageError, match="takes no script; launch"):
        muster.run(print, script="x.py")  # type: ignore[call-arg]


def test_the_names_need_neither_torch_nor_ssh() -> None:
    code = (
        "import sys, muster; assert not [name for name in sys.modules if name.startswith('muster.')]; "
        "muster.launch, muster.run, muster.RankError; "
        "assert not {'torch', 'fabric', 'paramiko', 'cloudpickle'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 1.5, "text", b"bytes\0"),
        *([1, (2, {3})], frozenset({1}), (), {}, {"a": [1]}, {1: "x", (2, 3): None}),
        {"\0tuple": [1]},
    ],
)
def test_a_plain_value_arrives_as_it_was(value: object) -> None:
    arrived = decoded(json.loads(json.dumps(encoded(value))))
    assert (arrived, type(arrived)) == (value, type(value))


def test_numbers_that_are_none_and_subclasses_arrive_as_plain_ones() -> None:
    class Loss(float):
        """As numpy.float64 is."""

    assert math.isnan(decoded(json.loads(json.dumps(encoded(math.nan)))))
    assert type(encoded(Loss(2))) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [(object(), "it is a builtins.object"), ({"a": [0, Path()]}, r"it\['a'\]\[1\] is a pathlib\.\w+")],
)
def test_another_value_is_named(value: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        encoded(value)


@pytest.mark.parametrize("text", ['{"\\u0000x": 1}', '{"\\u0000set": [[]]}', '{"\\u0000bytes": "é"}'])
def test_a_hosts_own_kind_of_value_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        decoded(json.loads(text))


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict"])
def test_values_of_a_host_with_equal_hashes_are_an_error(kind: str) -> None:
    numbers = [number * sys.hash_info.modulus for number in range(1000)]  # their hash is 0
    items: list[Any] = [[number, 0] for number in numbers] if kind == "dict" else numbers
    with pytest.raises(ValueError, match="more than 256 values have the same hash"):
        decoded({f"\0{kind}": items})


def test_an_error_shows_the_text_of_a_host_without_control_characters(result: JobResult) -> None:
    errors = (
        RankError(result, 1, "E\x1b[2J", "a\x1b[2J\nb", "Traceback\n\x1b[2J"),
        JobError(result, "x\x1b[2J"),
        LaunchError("node1: x\x1b[2J\ny"),
    )
    assert not [error for error in errors if "\x1b" in f"{error}{vars(error)}"]
    assert errors[0].text == "a␛[2J\nb"


def called(
    folder: Path, function: Callable[..., object], *arguments: object, attempt: int = 0
) -> tuple[int, dict[str, Any], str]:
    """The end of a rank that calls a function, its record, and its errors."""
    code, out = folder / "lib", folder / "out"
    code.mkdir()
    write_call(code, function, arguments)
    env = {**os.environ, "RANK": "3", "MUSTER_OUT": str(out), "PYTHONPATH": str(code)}
    command = [sys.executable, "-m", "muster_call", "name"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, json.loads((out / name_of(3, attempt)).read_text()), done.stderr


def test_a_rank_writes_the_value_of_the_function(tmp_path: Path) -> None:
    factor = 7
    status, record, error = called(tmp_path, lambda number: (number * factor, os.environ["RANK"]), 6)
    assert (status, error) == (0, "")
    assert decoded(record["value"]) == (42, "3")


def test_a_function_that_can_be_imported_is_sent_by_its_name(tmp_path: Path) -> None:
    status, record, _ = called(tmp_path, math.sqrt, 4)
    assert (status, record) == (0, {"value": 2.0})
    assert not (tmp_path / "lib" / PYTHON).exists()


def test_a_rank_writes_the_exception_and_ends_with_it(tmp_path: Path) -> None:
    def function(number: int) -> None:
        raise KeyError(f"no {number}")

    status, record, error = called(tmp_path, function, 6)
    assert (status, record["error"]["type"], record["error"]["text"]) == (1, "KeyError", "'no 6'")
    trace = record["error"]["traceback"]
    assert "in function" in trace
    assert "muster_call.py" not in trace
    assert error.rstrip().endswith("KeyError: 'no 6'")


def test_a_value_that_is_not_plain_is_an_exception(tmp_path: Path) -> None:
    status, record, _ = called(tmp_path, lambda number: [object()], 6)
    assert status == 1
    assert record["error"]["text"].startswith("the function returned a value that is not plain: it[0] is a")


def test_code_for_another_python_than_that_of_a_host_is_refused_before_ranks_start(tmp_path: Path) -> None:
    write_call(tmp_path, lambda number: 1, (6,))
    version = (tmp_path / PYTHON).read_text()
    assert version == "{}.{}".format(*sys.version_info)
    program = Program(module=CALL, python=version)
    there = {"node1": {"python": f"{version}.1"}, "node2": {"python": "3.9.2"}}
    with pytest.raises(UnfitError) as refused:
        make_plan("node[1-2] slots=1", program=program, facts=there)
    assert (
        f"node2: its ranks have Python 3.9.2, and the code of the function comes from Python {version};"
        in str(refused.value)
    )
    assert "node1" not in str(refused.value)
    make_plan("node[1-2] slots=1", program=dataclasses.replace(program, python=""), facts=there)


def test_a_function_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with (
        (tmp_path / "open").open("w") as file,
        pytest.raises(UsageError, match="cannot be sent to the ranks"),
    ):
        write_call(tmp_path, lambda: file, ())


@pytest.fixture
def result(tmp_path: Path) -> JobResult:
    """A job of two ranks, the second of which failed first."""
    (tmp_path / "verdict.txt").write_text("FAILED  rank 1\n")
    (tmp_path / "returned").mkdir()
    ends = [
        {"rank": rank, "host": f"node{rank}", "local_rank": 0, "code": rank, "ended": 1.0} for rank in (0, 1)
    ]
    failure = {"kind": "rank", "rank": 1, "host": "node1", "reason": "x\x1b[2J", "time": 1.0, "tail": []}
    text = {"job": "j", "launcher": "mpirun", "state": "failed", "exit_status": 1, "attempt": 0, "ended": 2.0}
    text |= {"hosts": ["node0", "node1"], "ranks": ends, "first_failure": failure, "started": 1.0}
    (tmp_path / "result.json").write_text(json.dumps(text))
    read = read_result(tmp_path)
    assert read
    return read


def values(result: JobResult) -> list[Any]:
    return [functions._value(result, rank) for rank in functions._ranks(result)]


def test_the_exception_of_the_first_failure_is_raised(result: JobResult) -> None:
    for rank in (0, 1):
        error = {"type": "ValueError", "text": f"of {rank}\x1b[2J", "traceback": "Traceback ..."}
        (result.folder / name_of(rank, 0)).write_text(json.dumps({"error": error}))
    with pytest.raises(RankError) as caught:
        values(result)
    assert (caught.value.rank, caught.value.host, caught.value.type_name) == (1, "node1", "ValueError")
    assert "\x1b" not in str(caught.value)
    assert str(caught.value).startswith("rank 1 on node1: ValueError: of 1")


def test_a_failure_without_an_exception_is_the_verdict(result: JobResult) -> None:
    assert result.ranks[1] == RankEnd(1, "node1", 0, 1, 1.0)
    assert result.first_failure
    assert "\x1b" not in result.first_failure.reason
    with pytest.raises(JobError, match=r"^FAILED  rank 1$"):
        values(result)


def test_a_value_of_an_earlier_attempt_is_not_that_of_a_restart(
    tmp_path: Path, result: JobResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_RESTART", "0")
    called(tmp_path, lambda: 1)
    (tmp_path / "out" / name_of(3, 0)).rename(tmp_path / name_of(3, 0))
    monkeypatch.setenv("MUSTER_RESTART", "2")
    with pytest.raises(JobError, match=r"^FAILED  rank 1$"):
        functions._value(dataclasses.replace(result, attempt=2), 3)
    shutil.rmtree(tmp_path / "lib")
    _, record, _ = called(tmp_path, lambda: 5, attempt=2)
    assert record == {"value": 5}


def test_a_failure_without_a_verdict_is_its_reason(result: JobResult) -> None:
    (result.folder / "verdict.txt").unlink()  # the disk was full
    with pytest.raises(JobError, match=r"^j: x␛\[2J \(no verdict here: .*verdict\.txt"):
        values(result)


def test_output_that_the_program_cannot_show_is_still_read() -> None:
    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError(text)

    reader, writer = os.pipe()
    functions._thread(partial(functions._copy, os.fdopen(reader, "rb"), Screen()))
    with os.fdopen(writer, "wb", buffering=0) as output:
        assert output.write(bytes(1 << 20)) == 1 << 20  # more than a pipe holds


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "7", "[" * 9999, '{"error": [1]}', '{"error": {"type": "x"}}']
)
def test_a_record_that_a_host_has_made_up_is_an_error(result: JobResult, text: str) -> None:
    (result.folder / name_of(1, 0)).write_text(text)
    with pytest.raises(MusterError, match=r"not the value of a rank|FAILED"):
        values(result)


def test_a_folder_without_a_result_has_none(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(MusterError, match=r"result\.json: no attempt"):
        read_result(tmp_path)
