"""Chooses the UID of the account that jobs run as: one for all hosts, because hosts may share its home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Accounts = Mapping[str, Mapping[str, Any]]
NOBODY_ELSE = ("", "0")  # no home yet, or root's


def account_numbers(known: Accounts, accounts: Accounts, wanted: str | int) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each with the `uid` that its account has or gets, and with a `uid_problem`.

    `accounts`: of each host the name (`user`) and `uid` of the account, None if there is none, and the
    `numbers` that preflight asked for, {} for a host that this run omits. `wanted`: muster_uid, the number of
    new accounts.
    """
    given = {name: dict(host) | {"uid": None, "uid_problem": ""} for name, host in known.items()}
    used: set[int] = set()
    for user in sorted({str(account["user"]) for account in accounts.values()}):
        ours = {name: account for name, account in accounts.items() if account["user"] == user}
        has = {name: int(account["uid"]) for name, account in ours.items() if account["uid"] is not None}
        new = {name: account["numbers"] for name, account in ours.items() if name not in has}
        number = int(wanted) if wanted else _number(set(has.values()), list(filter(None, new.values())), used)
        used |= {*has.values()} | ({number} if number else set())
        for name, account in ours.items():
            given[name]["uid"] = has.get(name, number)
            problem = _of_new(user, number, account["numbers"]) if name in new else _of_old(user, account)
            given[name]["uid_problem"] = problem
    return given


def _number(has: set[int], new: list[Mapping[str, Any]], used: set[int]) -> int | None:
    """Return the number of new accounts: one that the account, or its home, has already, or a free one."""
    has |= {int(numbers["home_owner"]) for numbers in new if numbers["home_owner"] not in NOBODY_ELSE}
    taken = {int(number) for numbers in new for number in numbers["taken"]} | used
    free = set.intersection(*(set(numbers["free"]) for numbers in new)) if new else set()
    return min(has - taken, default=None) or min(has or free - used, default=None)


def _of_old(user: str, account: Mapping[str, Any]) -> str:
    """Return why an account that exists cannot use its home; "" if it can."""
    home, owner = account["numbers"].get("home"), account["numbers"].get("home_owner", "")
    if owner in (*NOBODY_ELSE, str(account["uid"])):
        return ""
    return (
        f"{home} belongs to the number {owner}, and the account {user} has the number {account['uid']} here: "
        "hosts that share a home need one number for the account; on this host: "
        f"usermod --uid {owner} {user}"
    )


def _of_new(user: str, number: int | None, numbers: Mapping[str, Any]) -> str:
    """Return why a new account could not have this number, or not use its home; "" if it can."""
    if not numbers:
        return ""
    if number is None:
        return f"no number for the account {user} is free on all hosts; name one: -e muster_uid=NUMBER"
    if holder := numbers["taken"].get(str(number)):
        return (
            f"the account {user} would get the number {number} as on the other hosts, which is that of "
            f"{holder} here; give {holder} another one, or, if no home is shared, name one that is free on "
            "all hosts: -e muster_uid=NUMBER"
        )
    if (owner := numbers["home_owner"]) in (*NOBODY_ELSE, str(number)):
        return ""
    return (
        f"{numbers['home']} belongs to the number {owner}, and the account {user} would get the number "
        f"{number}; move it away, or choose its owner's number: -e muster_uid={owner}"
    )


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_account_numbers": account_numbers}
