"""What is read of a login whose shell prints something."""

from __future__ import annotations

import pytest

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
