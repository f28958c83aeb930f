"""What comes with the commands: the folder that is the package `muster`, in a checkout as in a wheel."""

from __future__ import annotations

from pathlib import Path

MUSTER = Path(__file__).parents[2]
TRAIN = MUSTER / "train"
ANSIBLE = MUSTER / "ansible"
COMPOSE = MUSTER / "compose.yaml"
