"""Whether this host reaches the servers of a lock's packages: one address of each is tried."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.request

SECONDS = 5.0  # for all addresses: the driver waits 15 s (features/packages/bring.py)


def refusal(urls: list[str]) -> str:
    """Why one of the addresses does not answer; empty if all do. A name server may take long to answer."""
    reasons: dict[str, str] = {}

    def attempt(url: str) -> None:
        # http or https: features/packages/lock.py takes no others.
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310
                reasons[url] = ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            reasons[url] = f"{url}: {error}"

    threads = [threading.Thread(target=attempt, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = f"no answer within {SECONDS:.0f} s"
    return next((reason for url in urls if (reason := reasons.get(url, f"{url}: {silent}"))), "")
