"""Users that the user database does not know, as after `docker run --user 12345`."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from muster.deploy.cli.command import Exit, exit_on_error
from muster.deploy.cli.shared import cache_folder
from muster.deploy.core.agent.rsh import login_shell
from muster.deploy.core.connect.transports.ssh_config import _route
from muster.deploy.core.wire.users import own_name
from muster.deploy.features.check.on_host import health


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unknown")
def test_a_user_without_an_entry_is_called_by_its_number() -> None:
    assert own_name() == str(os.getuid())


@pytest.mark.usefixtures("unknown")
def test_a_host_is_examined_also_for_a_user_without_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert health()["user"] == str(os.getuid())
    assert login_shell() == ""


@pytest.mark.usefixtures("unknown")
def test_a_user_without_a_home_is_told_to_set_one() -> None:
    with pytest.raises(Exit, match=f"here: user {os.getuid()} has no home folder; set HOME"):  # noqa: SIM117
        with exit_on_error():
            cache_folder()


def test_a_home_of_nobody_in_an_ssh_configuration_is_no_file() -> None:
    assert _route("node1", "identityfile ~nobody-at-all/key", ()).identity_files == ()


def test_the_environment_names_a_user_without_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ml")
    assert own_name() == "ml"
