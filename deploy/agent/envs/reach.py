"""Whether this host reaches an index: the addresses of a lock are tried, a few seconds at most."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

SECONDS = 5.0


def refusal(urls: list[str]) -> str:
    """Why one of the addresses does not answer; empty if all do. A name server may keep silent for long."""
    reasons: dict[str, str] = {}

    def attempt(url: str) -> None:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310  # https only, as the driver says
        try:
            with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310
                reasons[url] = ""
        except (OSError, ValueError) as error:
            reasons[url] = f"{url}: {error}"

    threads = [threading.Thread(target=attempt, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    silent = f"no answer within {SECONDS:.0f} s"
    return next((reason for url in urls if (reason := reasons.get(url, f"{url}: {silent}"))), "")
