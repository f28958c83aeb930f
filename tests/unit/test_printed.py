"""The figures in lines that programs print: of status, of top and of the page of a run."""

from __future__ import annotations

import pytest

from muster.deploy.core.text.printed import figures_of, seconds_left

# What well-known trainers print, each with its step, loss, share of the work and epoch.
TRAINERS = {
    "nanoGPT": ("iter 120: loss 3.2145, time 125.32ms, mfu 12.31%", (120, 3.2145, None, None)),
    "nanoGPT's evaluation": ("step 250: train loss 2.1045, val loss 2.2157", (250, 2.1045, None, None)),
    "nanochat": (
        "step 00120/21400 (0.56%) | loss: 5.123456 | lrm: 1.00 | dt: 123.45ms | tok/sec: 12,345 | epoch: 1",
        (120, 5.123456, 120 / 21400, 1),
    ),
    "torchtitan": (
        "[titan] 2026-11-27 18:00:10,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.4321  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[33mmemory:  1.50GiB(2%)  \x1b[34mtps: 1,010\x1b[39m",
        (10, 7.4321, None, None),
    ),
    "HF Trainer": (
        "{'loss': 2.1345, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.12}",
        (None, 2.1345, None, 0.12),
    ),
    "HF Trainer 5": ("{'loss': '2.1345', 'grad_norm': '1.2', 'epoch': '0.12'}", (None, 2.1345, None, 0.12)),
    "HF Trainer's evaluation": (
        "{'eval_loss': 2.3, 'eval_steps_per_second': 20.1, 'epoch': 1.0}",
        (None, None, None, 1),
    ),
    "HF Trainer's bar": (" 12%|█▏        | 120/1000 [00:45<05:32,  2.65it/s]", (120, None, 0.12, None)),
    "Lightning": (
        "Epoch 3:  45%|████▌     | 45/100 [00:12<00:15,  3.6it/s, v_num=1, train_loss=0.345]",
        (45, 0.345, None, 3.45),
    ),
    "Lightning with Rich": (
        "Epoch 3/4  ━━━━━━━╸━━━ 45/100 0:00:12 • 0:00:15 3.60it/s v_num: 1.000 train_loss_step: 0.345",
        (45, 0.345, (2 + 0.45) / 4, 3.45),
    ),
    "Megatron": (
        " [2026-11-27 18:00:00] iteration      120/  500000 | consumed samples:        30720 | elapsed time "
        "per iteration (ms): 1234.5 | global batch size:   256 | lm loss: 7.123456E+00 | loss scale: 1.0 |",
        (120, 7.123456, 120 / 500000, None),
    ),
    "DeepSpeed": ("steps: 10 loss: 2.3456 iter time (s): 0.123 samples/sec: 65.0", (10, 2.3456, None, None)),
    "DeepSpeed's optimizer": (
        "[2026-11-27 18:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05]",
        (10, None, None, None),
    ),
    "accelerate": (
        "Steps:  12%|█▏        | 120/1000 [00:45<05:32,  2.65it/s, lr=1e-5, step_loss=0.123]",
        (120, 0.123, 0.12, None),
    ),
    "fairseq": (
        "2026-11-27 18:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=12.345, ppl=5200.1, "
        "wps=12345, lr=1e-05",
        (100, 12.345, None, 1.1),
    ),
    "fairseq's updates": (
        "2026-11-27 18:00:00 | INFO | train_inner | epoch 002:    100 / 1000 loss=12.345, num_updates=1100",
        (1100, 12.345, None, 2),
    ),
    "detectron": (
        "[11/27 18:00:00 d2.utils.events]:  eta: 0:12:34  iter: 119  total_loss: 1.234  loss_cls: 0.4  "
        "loss_box_reg: 0.3  time: 0.25  max_mem: 2000M",
        (119, 1.234, None, None),
    ),
    "mmengine": ("Epoch(train) [3][ 120/1000]  lr: 1e-2  loss: 0.35", (120, 0.35, None, 3.12)),
    "tqdm's postfix": (
        "train:  45%|████▌     | 450/1000 [01:23<01:42,  5.4it/s, loss=0.345]",
        (450, 0.345, 0.45, None),
    ),
    "a bar of something else": (
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.2it/s]",
        (None, None, None, None),
    ),
    "JSON": ('{"eval/loss": 0.5, "train/loss": 0.35, "trainer/global_step": 120}', (120, 0.35, None, None)),
    "dense JSON": ('{"loss":0.35,"step":1250,"max_steps":5000}', (1250, 0.35, None, None)),
    "key=value": ("ts=2026-11-27T18:00:00Z level=info step=120 loss=0.35", (120, 0.35, None, None)),
    "loguru": (
        "\x1b[32m2026-11-27 18:00:00.123\x1b[0m | \x1b[1mINFO    \x1b[0m | \x1b[36m__main__\x1b[0m:\x1b[36m"
        "step\x1b[0m:\x1b[36m42\x1b[0m - \x1b[1mstep 120/1000 - loss: 0.3500\x1b[0m",
        (120, 0.35, 0.12, None),
    ),
    "logging": ("INFO:root:step 120 loss 0.35", (120, 0.35, None, None)),
    "Keras": ("Epoch 3/10 - loss: 0.2 - val_loss: 0.3", (None, 0.2, 0.3, 3)),
    "an example of PyTorch": (
        "Train Epoch: 3 [12800/60000 (21%)]\tLoss: 0.234567",
        (None, 0.234567, None, 3),
    ),
    "LitGPT": (
        "Epoch 1 | iter 5 step 2 | loss train: 2.300, val: n/a | iter time: 12.34 ms",
        (5, 2.3, None, 1),
    ),
    "muster.train": ("step 120 loss 0.35", (120, 0.35, None, None)),
    "a step of an epoch": ("epoch 3/10  step 50/100", (50, None, 0.25, 3.5)),
    "a step of all": ("epoch 3/10  step 5000", (5000, None, None, 3)),
    "in words": ("steps: 3 of 12", (3, None, 0.25, None)),
    "an exponent": ("Iteration: 7, loss=1e-3", (7, 1e-3, None, None)),
    "thousands": ("step 1,250/10,000 loss 1,234.5", (1250, 1234.5, 0.125, None)),
    "no digit before the point": ("loss .35", (None, 0.35, None, None)),
    "an infinite loss": ("step 4 loss 1e999", (4, None, None, None)),  # JSON has no infinity
    "no total": ("step 9/0", (9, None, None, None)),
    "more than all": ("step 30/20", (30, None, 1.0, None)),
    "seconds": ("step 0.5 s, 12 ms/step: 80", (None, None, None, None)),
    "options": ("max_steps: 1000, gradient accumulation steps: 4", (None, None, None, None)),
    "other words": ("stepping stone, no loss of data", (None, None, None, None)),
}


@pytest.mark.parametrize(("line", "figures"), TRAINERS.values(), ids=TRAINERS)
def test_a_line_has_a_step_a_loss_how_much_is_done_and_an_epoch(
    line: str, figures: tuple[float | None, ...]
) -> None:
    wanted = [None if figure is None else pytest.approx(figure) for figure in figures]
    assert [*figures_of(line)] == wanted


def test_the_time_that_is_left_follows_from_the_pace_so_far() -> None:
    assert seconds_left(0.25, 60.0) == pytest.approx(180.0)
    assert seconds_left(0.75, 60.0, before=0.25) == pytest.approx(30.0)
    assert seconds_left(1.0, 60.0) == 0.0
    assert [seconds_left(*known) for known in ((None, 60.0), (0.001, 60.0), (0.5, 0.0))] == [None] * 3
    assert seconds_left(0.5, 60.0, before=0.5) is None
