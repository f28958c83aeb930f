"""Writes the page of a run after the verdict of its job."""

from __future__ import annotations

from pathlib import Path

from ..core import interrupts
from ..core.errors import MusterError
from ..core.text.progress import Progress
from ..core.wire.os_errors import explain
from .shared import print_note

PAGE = "report.html"


def end_with_page(folder: Path) -> None:
    """Write the page of a run. An error is a note, and never changes the exit status of the job."""
    why = ""
    try:
        from ..features.page.render import write_report

        with interrupts.interruptible(), Progress("writing the page"):
            write_report(folder, folder / PAGE)
    except MusterError as error:
        why = str(error)
    except OSError as error:
        why = explain(error)
    except KeyboardInterrupt:
        why = "interrupted; make it with muster report"
    except Exception as error:  # noqa: BLE001  # also a bug of Muster, or an unexpected record
        why = f"{type(error).__name__}: {error}"
    if why:
        print_note(f"note: no page of {folder.name}: {why}")
