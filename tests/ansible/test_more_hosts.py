"""A host joins a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.test_setup import CHECKS

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("joined")]


def test_a_host_is_added_by_another_setup_also_by_an_operator_who_is_not_root(hosts: Hosts) -> None:
    assert hosts.play("setup").changed == 0
    done = hosts.play("verify")
    assert done.status == 0, done.text
    assert len(hosts.checks()) == len(hosts.names) * len(CHECKS)
