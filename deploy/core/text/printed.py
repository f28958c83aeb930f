"""The figures in the lines that programs print: step, loss, and how much is done. Pure."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .terminal import without_colours

# The signs between a name and its figure: `loss 1`, `loss: 1`, `loss=1`, `'loss': '1'`, `Epoch: [1]`.
_IS = r"""["']? ?(?:[:=|#]|->|is )? ?["'(\[]{0,2} ?"""
_WHOLE = r"(\d{1,3}(?:[,_]\d{3}){1,3}(?![\w%]|\.\d)|\d{1,12}(?![\w%]|\.\d))"
_OF = rf" ?(?:/|of) ?{_WHOLE}"
# Not the function and the line of a log message: `__main__:step:42 - `.
_STEP = re.compile(
    rf"(?<![^\W_])(?!(?<=:)\w{{1,40}}:\d+ )(?:step|iter|iteration|num_update)s?\b{_IS}{_WHOLE}(?:{_OF})?",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    rf"\bepoch(?:\(train\)|\b){_IS}(\d{{1,9}}(?:\.\d{{1,9}})?)(?!\w)(?:{_OF})?", re.IGNORECASE
)
# The step of an epoch, after its number: `epoch 001: 100 / 1000`, `Epoch: [3][ 120/1000]`.
_OF_EPOCH = re.compile(rf" ?(?:\] ?\[|:) ?{_WHOLE}{_OF}")
# The bars of tqdm and of Rich: `45%|████▌ | 450/1000 [01:23<`, `━━━━ 450/1000 0:01:23`.
_BAR = re.compile(rf"(?:\d{{1,3}}%\|[^|]{{0,200}}\| ?|[━╸╺] ){_WHOLE}{_OF} (?=\[|\d+:\d\d)")
_BAR_OF_STEPS = re.compile(r"epoch|step|iter|train", re.IGNORECASE)
_LOSS = re.compile(
    rf"(?<![^\W_])loss(?:_step|[_ /.]train)?\b{_IS}"
    r"([-+]?(?:\d{1,3}(?:,\d{3}){1,3}(?!\d)|\d+|(?=\.\d))(?:\.\d*)?(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
_BEFORE = re.compile(r"([a-z]+)([ _./]|[\"'])$", re.IGNORECASE)
# Words before a figure: those that may be joined to it, as in `global_step`, and those of another figure.
_JOINED = {
    "global",
    "train",
    "training",
    "trainer",
    "total",
    "lm",
    "step",
    "mean",
    "avg",
    "average",
    "running",
}
_OTHER = {
    *("eval", "evaluation", "val", "valid", "validation", "test", "dev", "aux", "auxiliary"),
    *("max", "maximum", "num", "warmup", "accumulation", "per", "every", "of", "best"),
}
LEAST_DONE = 0.01
"""Below this share of the work, start-up and warm-up dominate, so the remaining time is unknown."""


class PrintedFigures(NamedTuple):
    """The figures of a line; None for those that it does not have."""

    step: int | None = None
    loss: float | None = None
    done: float | None = None
    """The share of all steps, or of all epochs, from 0 to 1, if the line has their number."""
    epoch: float | None = None
    """With a share of it, if the line has one."""


def figures_of(line: str) -> PrintedFigures:
    """The figures in `epoch 2/10 step 120/1000 loss 0.35`. Those of an evaluation are no loss."""
    line = " ".join(without_colours(line).split())
    epoch, loss = _EPOCH.search(line), _first(_LOSS, line)
    step, is_of_epoch = _step(line, epoch, has_loss=loss is not None)
    number, total = (_number(step[1]), _number(step[2] or "0")) if step else (0.0, 0.0)
    share = number / total if total else None
    at, epochs = (float(epoch[1]), _number(epoch[2] or "0")) if epoch else (0.0, 0.0)
    done = None if is_of_epoch else share
    if epochs and (step is None or step[2]):
        # A line with epoch and step is about the epoch that runs; with an epoch alone, about one that ended.
        done = (max(0.0, at - 1 if step else at) + (share or 0.0)) / epochs
    value = float(loss[1].replace(",", "")) if loss else math.inf
    return PrintedFigures(
        int(number) if step else None,
        value if math.isfinite(value) else None,
        min(done, 1.0) if done else None,
        at + (share or 0.0 if is_of_epoch else 0.0) if epoch else None,
    )


def _step(line: str, epoch: re.Match[str] | None, *, has_loss: bool) -> tuple[re.Match[str] | None, bool]:
    """The step of a line, and whether it counts the steps of one epoch."""
    if named := _first(_STEP, line):
        return named, bool(epoch and epoch[2])
    if epoch and (found := _OF_EPOCH.match(line, epoch.end())):
        return found, True
    if bar := _BAR.search(line):
        what = line[: bar.start()]
        if has_loss or _BAR_OF_STEPS.search(what) or not any(map(str.isalpha, what)):
            return bar, epoch is not None and epoch.start() < bar.start()
    return None, False


def _first(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """The first match whose word before makes it no other figure, such as `max_steps` and `val loss`."""
    for match in pattern.finditer(line):
        before = _BEFORE.search(line[max(0, match.start() - 20) : match.start()])
        word, sign = (before[1].lower(), before[2]) if before else ("", "")
        if word not in _OTHER and (not word or sign in " \"'" or word in _JOINED):
            return match
    return None


def _number(text: str) -> float:
    return float(re.sub("[,_]", "", text))


def seconds_left(done: float | None, seconds: float, *, before: float = 0.0) -> float | None:
    """The time until the end of a program that went from the share `before` to `done` in these seconds."""
    if done is None or done < LEAST_DONE or done <= before or seconds <= 0:
        return None
    return seconds * (1.0 - done) / (done - before)
