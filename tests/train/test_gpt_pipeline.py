"""examples/gpt_pipeline.py: the losses of gpt.py, whichever rank has which blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.forked import run_script

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINE = EXAMPLES / "gpt_pipeline.py"
SHAPE = ("--layers", "3", "--width", "16", "--heads", "2", "--context", "16")
Curve = list[list[float]]
TINY = (*SHAPE, "--batch-size", "8", "--steps", "5", "--log-every", "1")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("".join(f"{number}, " for number in range(2000)))
    return "--data", str(folder)


def train(out: Path, ranks: int, text: tuple[str, ...], *words: str, script: Path = PIPELINE) -> Curve:
    """Train; returns loss and gradient norm of every step."""
    run_script(script, ranks, *TINY, *text, *words, out=out)
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return [[line["loss"], line["gradient_norm"]] for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: tuple[str, ...]) -> Curve:
    return train(tmp_path_factory.mktemp("whole"), 1, text, "--peak", "1e9", script=EXAMPLES / "gpt.py")


@pytest.mark.parametrize(
    ("ranks", "micro_batches"),
    [(2, 4), pytest.param(1, 2, marks=pytest.mark.soak), pytest.param(3, 8, marks=pytest.mark.soak)],
)
def test_a_pipeline_has_the_losses_of_the_whole_model(
    tmp_path: Path, text: tuple[str, ...], whole: Curve, ranks: int, micro_batches: int
) -> None:
    piped = train(tmp_path, ranks, text, "--micro-batches", str(micro_batches))
    for step, of_whole in zip(piped, whole, strict=True):
        assert step == pytest.approx(of_whole, abs=1e-5)


def test_a_pipeline_that_shall_print_no_steps_writes_them(tmp_path: Path, text: tuple[str, ...]) -> None:
    words = ("--steps", "1", "--micro-batches", "2", "--log-every", "0")
    assert len(train(tmp_path, 1, text, *words)) == 1
    assert (tmp_path / "printed-0").read_text() == ""


@pytest.mark.parametrize("words", [("--layers", "0"), ("--micro-batches", "3")])
def test_odd_divisions_are_refused(tmp_path: Path, text: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match="--micro-batches must divide --batch-size"):
        train(tmp_path, 1, text, *words)


@pytest.mark.parametrize("words", [("--dtype", "bf16"), ("--resume",), ("--save-every", "5")])
def test_options_of_gpt_are_refused(tmp_path: Path, text: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=f"gpt_pipeline.py has no {words[0]}\n"):
        train(tmp_path, 1, text, *words)


def test_the_example_is_at_most_110_lines_long() -> None:
    assert len(PIPELINE.read_text().splitlines()) <= 110
