"""Answers of many ranks as a person reads them, with hosts that are played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.features.eval.command import NO_CONSOLE, Answer, Answers, RankAnswers, gather


class Host:
    """Plays the agent of a host: gives the answers that it was given, and keeps what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), list[Mapping[str, Any]]()

    def post(self, request: object, **words: object) -> Future[Any]:
        self.asked.append(words)
        future: Future[Any] = Future()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def wait(self, future: Future[Any], seconds: float, since: float) -> Any:
        return future.result()


def of(hosts: Mapping[str, Host]) -> dict[str, Channel]:
    return {name: cast("Channel", host) for name, host in hosts.items()}


def asked(*hosts: object, places: str, wanted: Sequence[int] = range(3), silent: str = "") -> RankAnswers:
    """What the ranks say. `places`: the number of each rank's host, one after the other."""
    played = {f"node{number}": Host(answer) for number, answer in enumerate(hosts, 1)}
    unreached = {"node9": silent} if silent else {}
    there = {rank: f"node{number}" for rank, number in enumerate(places)}
    return gather("j", of(played), there, "step", wanted, seconds=5, silent=unreached)


def test_ranks_with_equal_answers_are_one_line_and_the_most_come_first() -> None:
    far = Answers(recorded=True, ranks={"2": Answer(value="8", at="read (loader.py:3)")})
    near = Answers(recorded=True, ranks={"0": Answer(value="7"), "1": Answer(value="7", at="x (y.py:3)")})
    assert str(asked(far, near, places="221")) == "ranks 0-1: 7\nrank 2: 8\n"


def test_an_error_says_where_the_rank_was_and_a_long_value_has_its_own_lines() -> None:
    answers = {
        "0": Answer(value="tensor([[1.],\n        [2.]])"),
        "1": Answer(error="NameError: name 'x' is not defined", at="main (a.py:3)"),
    }
    gathered = asked(Answers(recorded=True, ranks=answers), places="11", wanted=range(2))
    assert str(gathered) == (
        "rank 0:\n    tensor([[1.],\n            [2.]])\n"
        "rank 1: NameError: name 'x' is not defined  [in main (a.py:3)]\n"
    )
    assert gathered.failed


def test_what_a_rank_answers_cannot_drive_the_terminal() -> None:
    ranks = {"0": Answer(value="\x1b[2J\x07", at="\x1b]0;x"), "1": Answer(error="\x1b[2J", at="\x9b1m")}
    said = str(asked(Answers(recorded=True, ranks=ranks), places="11", wanted=range(2)))
    assert not {"\x1b", "\x07", "\x9b"} & {*said}


def test_a_rank_that_its_host_does_not_know_is_named_and_a_silent_host_instead_of_its_ranks() -> None:
    known = Answers(recorded=True, ranks={"0": Answer(value="7")})
    assert str(asked(known, places="111")) == f"ranks 1-2: {NO_CONSOLE}\nrank 0: 7\n"
    gathered = asked(known, MusterError("no answer", host="node2"), places="112")
    assert str(gathered) == f"rank 0: 7\nrank 1: {NO_CONSOLE}\n"
    assert gathered.silent == {"node2": "no answer"}
    gathered = asked(known, places="199", silent="refused")
    assert (str(gathered), gathered.silent) == ("rank 0: 7\n", {"node9": "refused"})


def test_an_expression_for_one_rank_goes_to_its_host_alone() -> None:
    first, second = Host(), Host(Answers(recorded=True, ranks={"2": Answer(value="7")}))
    there = {0: "node1", 1: "node1", 2: "node2"}
    hosts = of({"node1": first, "node2": second})
    found = gather("j", hosts, there, "step", [2], seconds=5, silent={"node9": "no route"})
    assert (str(found), found.silent, first.asked) == ("rank 2: 7\n", {}, [])


def test_an_answer_of_a_rank_that_was_not_asked_is_left_out() -> None:
    ranks = {"0": Answer(value="7"), "1": Answer(value="7"), "99": Answer(value="7")}
    assert [*asked(Answers(recorded=True, ranks=ranks), places="11", wanted=[1]).answers] == [1]


def test_a_job_without_a_record_is_refused_with_a_sentence() -> None:
    with pytest.raises(UsageError, match="j was launched with --no-record, so its ranks have no console"):
        asked(Answers(recorded=False, ranks={}), Answers(recorded=False, ranks={}), places="112")


def test_a_host_that_no_longer_has_the_job_does_not_hide_the_others() -> None:
    here = Answers(recorded=True, ranks={str(rank): Answer(value="7") for rank in range(1, 3)})
    said = str(asked(Answers(recorded=False, ranks={}), here, places="122"))
    assert said == f"ranks 1-2: 7\nrank 0: {NO_CONSOLE}\n"
