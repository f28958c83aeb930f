"""Chooses the UID of the account that jobs run as: one for all hosts, because hosts may share its home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Accounts = Mapping[str, Mapping[str, Any]]
NOBODY_ELSE = ("", "0")  # no home yet, or root's


def account_uids(known: Accounts, accounts: Accounts, wanted: str | int) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each with the `uid` that its account has or gets, and with a `uid_problem`.

    `accounts`: of each host the name (`user`) and `uid` of the account, None if there is none, and the
    `uids` that preflight asked for, {} for a host that this run omits. `wanted`: muster_uid, the UID of
    new accounts.
    """
    given = {name: dict(host) | {"uid": None, "uid_problem": ""} for name, host in known.items()}
    used: set[int] = set()
    for user in sorted({str(account["user"]) for account in accounts.values()}):
        ours = {name: account for name, account in accounts.items() if account["user"] == user}
        has = {name: int(account["uid"]) for name, account in ours.items() if account["uid"] is not None}
        new = {name: account["uids"] for name, account in ours.items() if name not in has}
        uid = int(wanted) if wanted else _uid(set(has.values()), list(filter(None, new.values())), used)
        used |= {*has.values()} | ({uid} if uid else set())
        for name, account in ours.items():
            given[name]["uid"] = has.get(name, uid)
            problem = _of_new(user, uid, account["uids"]) if name in new else _of_old(user, account)
            given[name]["uid_problem"] = problem
    return given


def _uid(has: set[int], new: list[Mapping[str, Any]], used: set[int]) -> int | None:
    """Return the UID of new accounts: one that the account, or its home, has already, or a free one."""
    has |= {int(uids["home_owner"]) for uids in new if uids["home_owner"] not in NOBODY_ELSE}
    taken = {int(uid) for uids in new for uid in uids["taken"]} | used
    free = set.intersection(*(set(uids["free"]) for uids in new)) if new else set()
    return min(has - taken, default=None) or min(has or free - used, default=None)


def _of_old(user: str, account: Mapping[str, Any]) -> str:
    """Return why an account that exists cannot use its home; "" if it can."""
    home, owner = account["uids"].get("home"), account["uids"].get("home_owner", "")
    if owner in (*NOBODY_ELSE, str(account["uid"])):
        return ""
    return (
        f"{home} belongs to UID {owner}, and the account {user} has UID {account['uid']} here: "
        "hosts that share a home need one UID for the account; on this host: "
        f"usermod --uid {owner} {user}"
    )


def _of_new(user: str, uid: int | None, uids: Mapping[str, Any]) -> str:
    """Return why a new account could not have this UID, or not use its home; "" if it can."""
    if not uids:
        return ""
    if uid is None:
        return f"no UID for the account {user} is free on all hosts; name one: -e muster_uid=UID"
    if holder := uids["taken"].get(str(uid)):
        return (
            f"the account {user} would get UID {uid} as on the other hosts, which is that of "
            f"{holder} here; give {holder} another one, or, if no home is shared, name one that is free on "
            "all hosts: -e muster_uid=UID"
        )
    if (owner := uids["home_owner"]) in (*NOBODY_ELSE, str(uid)):
        return ""
    return (
        f"{uids['home']} belongs to UID {owner}, and the account {user} would get UID "
        f"{uid}; move it away, or choose its owner's UID: -e muster_uid={owner}"
    )


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_account_uids": account_uids}
