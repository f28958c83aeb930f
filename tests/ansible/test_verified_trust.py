"""How verify.yml judges the trust between hosts: the logins, the jobs' account, and sshd."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.ansible.programs import module
from tests.ansible.rendering import render
from tests.ansible.test_problems import SEEN

verify = module("ssh_trust", "verify")
HOSTS: dict[str, dict[str, Any]] = {
    "node2": {"addresses": ["10.0.0.2"]},
    "node1": {"addresses": ["10.0.0.1"]},
}


def trials(**given: Any) -> dict[str, list[dict[str, Any]]]:
    """The logins that node1 tries, by check."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in json.loads(render("ssh_trust", "trials.j2", HOSTS, **given)):
        found.setdefault(trial["id"], []).append(trial)
    return found


@pytest.mark.parametrize("stack", ["bare", "node"])
def test_a_host_with_the_key_logs_in_everywhere_and_one_without_is_refused(stack: str) -> None:
    given = {"muster_stack": stack, "muster_engine_command": "docker"}
    before = ["docker", "exec", "-i", "muster-node"] if stack == "node" else ["runuser", "-u", "muster", "--"]
    for heads, names, refusal in (
        (["node1"], ["node2", "node1"], ""),
        (["node2"], ["node2"], "Permission denied (publickey)"),
    ):
        found = trials(ssh_trust_heads=heads, **given)
        pairs = [(trial["name"], trial["refusal"]) for trial in found["ssh_trust.pairs"]]
        assert pairs == [(name, refusal) for name in names]
        assert all(trial["argv"][: len(before)] == before for each in found.values() for trial in each)
        refused = {name: trial["refusal"] for name, (trial, *_) in found.items() if name != "ssh_trust.pairs"}
        assert refused == {
            "ssh_trust.unknown_host_key": "Host key verification failed",
            "ssh_trust.wrong_key": "Permission denied (publickey)",
            "ssh_trust.password": "Permission denied (publickey)",
        }


def test_a_trial_passes_with_the_login_or_with_the_refusal_that_it_expects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trial(check: str, script: str, refusal: str) -> dict[str, Any]:
        return {"id": check, "name": "node2", "argv": ["sh", "-c", script], "refusal": refusal}

    asked = [
        trial("in", "true", ""),
        trial("in", "echo 'no route' >&2; exit 255", ""),
        trial(
            "out", "echo banner >&2; echo 'Permission denied (publickey).' >&2; exit 255", "Permission denied"
        ),
        trial("open", "true", "Permission denied"),
        trial("lost", "echo 'no route' >&2; exit 255", "Permission denied"),
    ]
    monkeypatch.setattr(sys, "argv", ["verify", json.dumps(asked)])
    verify.main()
    assert json.loads(capsys.readouterr().out) == [
        {"id": "in", "ok": False, "detail": "node2: no route"},
        {"id": "out", "ok": True, "detail": ""},
        {"id": "open", "ok": False, "detail": "node2: status 0: let in"},
        {"id": "lost", "ok": False, "detail": "node2: status 255: no route"},
    ]


ACCOUNT = {"uid": 1001, "gid": 1001, "shell": "/bin/bash", "home": "/home/muster", "member_of": []}
ASKED = """muster L 11/28/2026 0 99999 7 -1
authorizedkeysfile /etc/muster/ssh/authorized_keys
authenticationmethods publickey
disableforwarding yes
maxsessions 64
maxstartups 10:30:100
User muster is not allowed to run sudo on node1.
"""
SUDO = "User muster may run the following commands on node1:\n    (ALL) NOPASSWD: ALL\n"


def said(template: str, asked: str = ASKED, **seen: Any) -> list[str]:
    """What the check says of a host."""
    units = {"ssh": {"stale": seen.pop("stale", False)}}
    own = {
        "account": ACCOUNT | {"ours": True},
        "uids": {"home_owner": "1001"},
        "units": units,
        "hardening": "",
    }
    given = {"stdout": asked, "stdout_lines": asked.splitlines()}
    text = render("ssh_trust", template, HOSTS, muster_seen=SEEN | own | seen, ssh_trust_asked=given)
    return [] if text == "None" else text.splitlines()  # as Ansible has an empty text


@pytest.mark.parametrize(
    ("asked", "seen", "expected"),
    [
        (ASKED, {}, []),
        (ASKED, {"account": {}}, ["there is no account muster; do: muster setup"]),
        (
            ASKED.replace("muster L", "muster P") + SUDO,
            {"account": ACCOUNT | {"member_of": ["shadow"], "shell": "/bin/sh"}},
            [
                "it is in the group shadow; do: gpasswd --delete muster shadow",
                "its shell is /bin/sh; do: muster setup",
                "it has a password; do: usermod --password '*' muster",
                "sudo lets it run (ALL) NOPASSWD: ALL; remove the rule (/etc/sudoers.d)",
            ],
        ),
        (
            ASKED,
            {"uids": {"home_owner": "0"}},
            ["/home/muster belongs to another; do: chown muster: /home/muster"],
        ),
        (
            ASKED,
            {"account": ACCOUNT | {"gid": 0}},
            ["its UID or GID is root's; do: usermod --uid UID --gid GID muster"],
        ),
    ],
    ids=["as made", "none", "many rights", "the home of another", "root's"],
)
def test_an_account_with_more_rights_than_setup_gave_it_is_found(
    asked: str, seen: dict[str, Any], expected: list[str]
) -> None:
    assert said("account.j2", asked, **seen) == expected


def test_settings_of_sshd_that_setup_did_not_write_are_found() -> None:
    assert said("server.j2") == []
    remedy = "do: muster setup, and remove what a file before /etc/ssh/sshd_config.d/10-muster.conf sets"
    changed = ASKED.replace("maxsessions 64", "maxsessions 5").replace("disableforwarding yes\n", "")
    hardened = {"hardening": "# For all accounts (hardening_enabled)\nMaxStartups 10:30:60\n"}
    assert said("server.j2", changed, **hardened, stale=True) == [
        "disableforwarding is None, not yes, maxsessions is 5, not 64, "
        f"maxstartups is 10:30:100, not 10:30:60; {remedy}",
        "sshd has not read /etc/ssh/sshd_config.d/10-muster.conf since it changed; do: muster setup",
    ]
