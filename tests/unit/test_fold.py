"""Messages of many hosts: one line for each reason."""

from __future__ import annotations

import time

import pytest

from muster.deploy.core.errors import HostError, UnfitError
from muster.deploy.core.text.fold import HostMessage, fold_messages

REFUSED = "does sshd run there? (port= sets another port)"


def test_a_thousand_hosts_that_fail_for_three_reasons_are_three_lines_with_each_remedy_once() -> None:
    names = [f"node{number:04}" for number in range(1, 1001)]
    errors: dict[str, HostError | str] = {
        name: HostError("ssh.port-refused", f"cannot connect to 10.0.{n // 250}.{n % 250} port 22", REFUSED)
        for n, name in enumerate(names)
    }
    for name in names[100:300]:
        errors[name] = HostError("host.failed", f"{name}.example: it failed", f"try: ssh {name}")
    errors[names[7]] = "its Python is damaged"
    error = UnfitError(errors.items())
    assert str(error).splitlines() == [
        "node[0001-0007,0009-0100,0301-1000]: cannot connect to 10.0.0.[0-6,8-99],10.0.1.[50-249],"
        f"10.0.2.[0-249],10.0.3.[0-249] port 22; {REFUSED}",
        "node0008: its Python is damaged",
        "node[0101-0300]: node[0101-0300].example: it failed; try: ssh node0101",
    ]
    assert len(error.reasons) == 1000, "programs get an entry for each host"
    assert error.reasons[100] == ("node0101", "node0101.example: it failed; try: ssh node0101")


@pytest.mark.parametrize(
    ("texts", "folded"),
    [
        (("fe80::1 port 20123", "fe80::2 port 20124"), "fe80::[1-2] port [20123-20124]"),
        (("Open MPI 5.0.7", "Open MPI 5.0.8"), None),
        (("is on 127.0.0.1", "is on node1"), None),
        ((f"key SHA256:{'a' * 43}", f"key SHA256:{'b' * 43}"), f"key SHA256:{'a' * 43},SHA256:{'b' * 43}"),
        (("a\tnode1 of node9", "a\tnode2 of node9"), "a\tnode[1-2] of node9"),
        (("", ""), ""),
    ],
)
def test_only_what_names_the_host_itself_may_differ(texts: tuple[str, str], folded: str | None) -> None:
    messages = [HostMessage(f"node{number}", text) for number, text in enumerate(texts, 1)]
    assert fold_messages(messages) == (messages if folded is None else [HostMessage("node[1-2]", folded)])


def test_of_many_long_values_the_first_is_shown_with_the_number_of_the_others() -> None:
    keys = [f"SHA256:{letter * 43}" for letter in "abc"]
    (one,) = fold_messages(HostMessage(f"n{number}", key) for number, key in enumerate(keys))
    assert one == ("n[0-2]", f"{keys[0]} and 2 more", "")


@pytest.mark.parametrize("part", ["a:", "abcdef0:", "::", "1.2.3."])
def test_a_host_cannot_choose_a_text_that_takes_quadratic_time(part: str) -> None:
    def cost(length: int) -> float:
        text, costs = (part * length)[:length], []
        for _ in range(3):
            began = time.process_time()
            fold_messages([HostMessage("node1", text)])
            costs.append(time.process_time() - began)
        return min(costs)

    assert cost(1 << 16) < 10 * cost(1 << 14)  # 4 times if linear, 16 times if quadratic
