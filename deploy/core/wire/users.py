"""Names and homes of users, also of those that are not in the user database (`docker run --user 12345`)."""

from __future__ import annotations

import getpass
import os
import pwd


def name_of(user: int) -> str:
    """The name of a user; the number where it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def own_name() -> str:
    """The name of the user of this process: from its environment, else from the user database."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())


def home() -> str:
    """The home folder of the user of this process; OSError with a remedy if there is none."""
    folder = os.path.expanduser("~")
    if folder == "~":
        raise OSError(f"user {own_name()} has no home folder; set HOME")
    return folder


def expanded(path: str) -> str:
    """A path with `~` or `~user` at its start; of an unknown user it stays as it is, and names no file."""
    return os.path.expanduser(path)
