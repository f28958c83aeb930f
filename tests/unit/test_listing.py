"""The listing of a folder on a host: page by page, and no more than this machine has room for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.channel import MOST_LINE, Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.requests.request import Request
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.features.adhoc import put_get as listing
from muster.deploy.features.adhoc import wire
from muster.deploy.features.adhoc.messages import Entries, FileFacts, ListedEntry
from muster.deploy.features.adhoc.put_get import facts_of

ENTRY = ListedEntry("a", "file", 0o644, 0, "", "")


def test_a_folder_of_more_files_than_fit_into_one_answer_is_listed_whole(tmp_path: Path) -> None:
    count = wire.PAGE + 5
    for number in range(count):
        (tmp_path / f"{number}").touch()
    channel = Channel("node1", LocalPipe(None), Inbox())
    try:
        told = facts_of(channel, str(tmp_path), 60.0)
    finally:
        channel.close()
    assert told.entries is not None
    assert {entry.path for entry in told.entries} == {str(number) for number in range(count)}


def test_a_page_is_no_longer_than_a_line_that_the_driver_takes() -> None:
    entry = 6 * (wire.PAGE_TEXT + 4096) + wire.PAGE * (len(f'["", "folder", 511, {1 << 62}, "", ""], ') + 64)
    assert entry < MOST_LINE  # each character as \uXXXX


class Liar:
    """A host whose folder never ends."""

    def __init__(self, page: tuple[ListedEntry, ...]) -> None:
        self.page = page

    def ask(self, request: Request[Any], **words: Any) -> FileFacts | Entries:
        if request.name == "file":
            return FileFacts(0o755, entries=self.page, more=True)
        return Entries(self.page, more=True)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (
            (ENTRY,) * 100_000,
            "has more than 200000 files and folders; bring it as one file: muster run -- tar",
        ),
        (
            (ListedEntry("x" * 4096, "link", 0, 0, "", "y" * 4096),) * 1000,
            "files and folders; bring it as one file",
        ),
        ((), "its listing does not continue"),
    ],
)
def test_a_folder_without_an_end_is_not_waited_for(page: tuple[ListedEntry, ...], complaint: str) -> None:
    with pytest.raises(MusterError, match=complaint):
        facts_of(Liar(page), "out", 1.0)  # type: ignore[arg-type]
    assert listing.MOST_ENTRIES == 200_000
