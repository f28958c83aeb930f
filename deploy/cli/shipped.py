"""Folders and files of the package `muster`, which a checkout and a wheel have in the same places."""

from __future__ import annotations

from pathlib import Path

MUSTER = Path(__file__).parents[2]
TRAIN = MUSTER / "train"
ANSIBLE = MUSTER / "ansible"
EXAMPLES = MUSTER / "examples"
COMPOSE = MUSTER / "compose.yaml"
