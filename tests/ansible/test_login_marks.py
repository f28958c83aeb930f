"""What is read of a login whose shell prints something, and of a run that stops for all hosts."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest

from tests.ansible.programs import loaded
from tests.ansible.rendering import render_value


@pytest.mark.parametrize("before", ["", "Welcome 10.88.0.1 op\r\n", "no end of line\nmuster-login\n"])
def test_only_the_marked_line_of_a_login_counts(before: str) -> None:
    said = f"{before}\r\nmuster-login op 10.88.0.1 5000 10.88.0.2 22\r\n"
    found = render_value("preflight", "preflight_operator", {"node1": {}}, preflight_login={"stdout": said})
    assert found["operator"] == {
        "login": "op",
        "client": "10.88.0.1",
        "client_port": "5000",
        "address": "10.88.0.2",
        "port": "22",
    }


def test_the_recap_counts_the_hosts_that_the_playbook_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loaded("../callback_plugins/plain.py")
    monkeypatch.setattr(plain.default.CallbackModule, "v2_playbook_on_stats", lambda *_: None)
    stats = SimpleNamespace(custom={"_run": {"muster_failed": ["node2"]}}, failures=defaultdict(int, node1=1))
    stats.processed = {"node1": 1}
    plain.CallbackModule().v2_playbook_on_stats(stats)
    assert (stats.failures, stats.processed) == ({"node2": 1}, {"node1": 1, "node2": 1})
