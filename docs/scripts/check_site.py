"""Checks a built site: pages fetch nothing from other sites, and links to other sites are well formed.

    python docs/scripts/check_site.py build/site

`mkdocs build --strict` checks the links between pages, tests/unit/test_docs.py those to files of the
checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_FETCHED = {"canonical", "next", "prev"}
"""Values of `rel` for which a browser fetches nothing."""


class Page(HTMLParser):
    """Collects the files that a page fetches and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in FETCHED and not NOT_FETCHED & set(values.get("rel", "").split()):
            self.fetched.append(values.get(FETCHED[tag], ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])


def problems(text: str) -> Iterator[str]:
    """Yield the problems of a page, one line each."""
    page = Page(text)
    for address in page.fetched:
        if urlsplit(address).netloc:
            yield f"fetches {address} from another site"
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme and (parts.scheme not in {"https", "mailto"} or not (parts.netloc or parts.path)):
            yield f"links to {address}: write https://"
        if parts.netloc and ("." not in parts.netloc or " " in address):
            yield f"links to {address}: no such address can be"


def main(site: Path) -> int:
    """Print the problems of every page; return the exit status."""
    pages = sorted(site.rglob("*.html"))
    lines = [
        f"{path.relative_to(site)}: {problem}" for path in pages for problem in problems(path.read_text())
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{len(pages)} pages, {len(lines)} problems\n")
    return 1 if lines or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
