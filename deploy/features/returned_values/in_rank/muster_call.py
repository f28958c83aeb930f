"""Runs the function of a call in a rank: `python -m muster_call NAME` (api/functions.py).

The job's folder has beside this module, in `muster_call_data/`, the function and its arguments, pickled by
the program that launched the job; cloudpickle, which reads them; and plain_values.py, which encodes the
value. The value, or the exception as text, goes into $MUSTER_OUT. An exception also ends the rank, as in any
program.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "muster_call_data")
MOST_TRACE = 1 << 16
"""Characters of a traceback that are kept: its end."""


def main() -> None:
    """Run the function, and write its value or its exception."""
    sys.path.insert(0, DATA)
    cloudpickle, plain = import_module("cloudpickle"), import_module("plain_values")
    sys.path.remove(DATA)
    sys.argv[1:] = []
    try:
        with open(os.path.join(DATA, "call.pickle"), "rb") as file:
            function, arguments = cloudpickle.load(file)
        value = function(*arguments)
        try:
            result = plain.encoded(value)
        except (TypeError, RecursionError) as error:
            raise TypeError(
                f"the function returned a value that is not plain: {error}; return numbers, texts, lists and "
                "dicts (TENSOR.tolist(), VALUE.item()), and write the rest to $MUSTER_OUT"
            ) from None
    except BaseException as error:
        _write({"error": _described(error)})
        raise
    _write({"value": result})


def _described(error: BaseException) -> dict[str, str]:
    """The exception as text, without the lines of this module."""
    here = os.path.abspath(__file__)
    trace = error.__traceback__
    while trace and os.path.abspath(trace.tb_frame.f_code.co_filename) == here and trace.tb_next:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return {
        "type": type(error).__qualname__,
        "text": str(error)[:MOST_TRACE],
        "traceback": "".join(lines)[-MOST_TRACE:],
    }


def _write(record: dict[str, Any]) -> None:
    folder = os.path.join(os.environ["MUSTER_OUT"], "returned")
    os.makedirs(folder, exist_ok=True)
    rank, attempt = os.environ["RANK"], os.environ.get("MUSTER_RESTART", "0")
    path = os.path.join(folder, f"rank-{rank}-{attempt}.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
