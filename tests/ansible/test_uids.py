"""The UID of the account that jobs run as: one for all hosts, because hosts may share its home."""

from __future__ import annotations

import grp
import pwd
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.programs import loaded
from tests.ansible.rendering import problems_of
from tests.ansible.test_observe import observe
from tests.ansible.test_problems import SEEN

plugin = loaded("preflight/filter_plugins/muster_known.py")


def new(*others: str, owner: str = "", user: str = "muster") -> dict[str, Any]:
    """A host without the account: the other accounts have the UIDs from 1000 on."""
    taken = {str(1000 + index): name for index, name in enumerate(others)}
    free = [uid for uid in range(1000, 1010) if str(uid) not in taken]
    uids = {"home": f"/home/{user}", "home_owner": owner, "free": free, "taken": taken}
    return {"user": user, "uid": None, "uids": uids}


def old(uid: int, owner: str | None = None, user: str = "muster") -> dict[str, Any]:
    """A host that has the account."""
    home_owner = str(uid) if owner is None else owner
    uids = {"home": f"/home/{user}", "home_owner": home_owner, "free": [], "taken": {}}
    return {"user": user, "uid": uid, "uids": uids}


def chosen(*accounts: dict[str, Any], wanted: str = "") -> tuple[list[int | None], list[str]]:
    """The UID on each host, and the problems."""
    given = {f"node{index}": account for index, account in enumerate(accounts)}
    known = plugin.account_uids({name: {} for name in given}, given, wanted)
    return [known[name]["uid"] for name in given], [known[name]["uid_problem"] for name in given]


@pytest.mark.parametrize(
    ("accounts", "uid"),
    [
        ([new("op"), new("op", "ml")], 1002),
        ([new("op"), old(1001)], 1001),
        ([new("op"), new("op", owner="1005")], 1005),
        ([old(1001), old(1002), new("op", "ml")], 1002),
        ([{"user": "muster", "uid": 1004, "uids": {}}, new("op")], 1004),
    ],
    ids=["free on all", "of another host", "of the home", "free here", "of a host that a limit omits"],
)
def test_a_new_account_has_one_uid_on_all_hosts(accounts: list[dict[str, Any]], uid: int) -> None:
    uids, problems = chosen(*accounts)
    made = [found for found, account in zip(uids, accounts, strict=True) if account["uid"] is None]
    assert (set(made), set(problems)) == ({uid}, {""})


def test_an_account_that_exists_keeps_its_uid() -> None:
    assert chosen(old(1001), old(1002), wanted="1003") == ([1001, 1002], ["", ""])


def test_two_accounts_have_two_uids() -> None:
    assert chosen(new("op"), new("op", user="ml"))[0] == [1002, 1001]


@pytest.mark.parametrize(
    ("accounts", "wanted", "said"),
    [
        (
            [old(1001), new("op", "bob", owner="1001")],
            "",
            "the account muster would get UID 1001 as on the other hosts, which is that of bob here; "
            "give bob another one, or, if no home is shared, name one that is free on all hosts: "
            "-e muster_uid=UID",
        ),
        (
            [old(1001), old(1002, owner="1001")],
            "",
            "/home/muster belongs to UID 1001, and the account muster has UID 1002 here: hosts "
            "that share a home need one UID for the account; on this host: usermod --uid 1001 muster",
        ),
        (
            [new("op"), new("op", owner="1001")],
            "1005",
            "/home/muster belongs to UID 1001, and the account muster would get UID 1005; move "
            "it away, or choose its owner's UID: -e muster_uid=1001",
        ),
        (
            [new(), new(*"abcdefghij")],
            "",
            "no UID for the account muster is free on all hosts; name one: -e muster_uid=UID",
        ),
    ],
    ids=["taken", "a shared home of two UIDs", "the home of another", "none is free"],
)
def test_an_account_without_its_home(accounts: list[dict[str, Any]], wanted: str, said: str) -> None:
    assert chosen(*accounts, wanted=wanted)[1][1] == said


def test_a_host_tells_which_uids_are_free(tmp_path: Path) -> None:
    defaults = tmp_path / "useradd"
    defaults.write_text(f"# HOME=/home\nHOME={tmp_path}\n")
    (tmp_path / "new").mkdir()
    found = observe.uids("new", {}, str(defaults))
    assert (found["home"], found["home_owner"]) == (f"{tmp_path}/new", str(tmp_path.stat().st_uid))
    listed = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    assert len(found["free"]) == 50
    assert not listed & {*found["free"]}
    assert {*found["taken"]} == {uid for uid in listed if uid >= 1000}
    assert observe.uids("new", {"home": "/nowhere"})["free"] == []


def test_preflight_refuses_it_before_any_change() -> None:
    known = {"node1": {"hostname": "node1", "host_keys": {}, "uid_problem": "its home is another's"}}
    given: dict[str, Any] = {"muster_seen": SEEN, "muster_known": known}
    assert "its home is another's" in problems_of({"node1": {}}, **given)
    assert problems_of({"node1": {}}, **given, muster_stack="node") == []
