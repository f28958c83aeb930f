"""The names of logs."""

from __future__ import annotations

import pytest

from muster.deploy.core.wire.rank_logs import RankLog, attempt_in


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (RankLog(7, "node2", 0, "err"), "rank-0007@node2.err"),
        (RankLog(12345, "a.b.restart-x", 3, "out"), "rank-12345@a.b.restart-x.restart-3.out"),
    ],
)
def test_a_name_is_read_as_it_was_written(log: RankLog, name: str) -> None:
    assert log.name == name
    assert RankLog.of_name(name) == log
    assert attempt_in(name) == log.attempt


@pytest.mark.parametrize("name", ["launcher@node2.log", "rank-7@node2.out", "rank-0007@node2.json", "order"])
def test_another_file_is_not_the_log_of_a_rank(name: str) -> None:
    assert RankLog.of_name(name) is None
