"""Takes the picture of the heat maps: docs/images/links.png, from a real run of `muster bench links`.

    python docs/scripts/links_picture.py PAGE

PAGE is the file of `muster bench links --html PAGE`; three hosts fit. It needs Chromium and pillow.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.scripts.page_picture import ROOT, take

PICTURE = ROOT / "docs" / "images" / "links.png"
WIDTH, HEIGHT = 1180, 410


def main(arguments: list[str]) -> None:
    """Take the picture of a page."""
    if len(arguments) != 1:
        raise SystemExit("which page? muster bench links --html PAGE writes one")
    take(Path(arguments[0]).resolve(), PICTURE, WIDTH, HEIGHT)


if __name__ == "__main__":
    main(sys.argv[1:])
