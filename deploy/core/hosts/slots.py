"""The slots of hosts by `--slots`: one for each of their GPUs or cores, or a number. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..errors import HostError, UsageError
from .host_facts import Facts
from .hostfile import MAX_SLOTS, Host

SlotRule = Literal["gpus", "cores", "auto"] | int
"""`gpus`, `cores`, `auto` for GPUs or, without any, cores; or a number for every host."""
_RULES: Mapping[str, SlotRule] = {
    **{"gpus": "gpus", "cores": "cores", "auto": "auto"},
    **{"gpu": "gpus", "cpu": "cores"},  # as torchrun writes them
}
NO_GPU = HostError(
    "slots.no-gpu",
    "no GPU to count for --slots gpus",
    "--slots auto takes cores there; --exclude leaves it out",
)


def slot_rule(text: str) -> SlotRule:
    """The rule that the value of `--slots` names; `UsageError` for anything else."""
    if text in _RULES:
        return _RULES[text]
    if (
        text.isascii()
        and text.isdecimal()
        and len(text) <= len(str(MAX_SLOTS))
        and 0 < int(text) <= MAX_SLOTS
    ):
        return int(text)
    raise UsageError(f"--slots {text}: write gpus, cores, auto, or a number from 1 to {MAX_SLOTS}")


def slots_of(facts: Facts, rule: SlotRule) -> int:
    """The slots of a host; `NO_GPU` for a host without GPUs if they are counted."""
    if isinstance(rule, int):
        return rule
    counted = facts.cores if rule == "cores" else facts.gpus
    if not counted:
        if rule == "gpus":
            raise NO_GPU
        counted = facts.cores
    return min(counted, MAX_SLOTS)


def counted_slots(
    hosts: Sequence[Host], facts: Mapping[str, Facts], rule: SlotRule
) -> tuple[tuple[Host, ...], dict[str, HostError]]:
    """The hosts with their slots by the rule, and the error of each host with nothing to count.

    Such a host keeps its slots, and so does a host without facts.
    """
    counted: list[Host] = []
    errors: dict[str, HostError] = {}
    for host in hosts:
        slots = rule if isinstance(rule, int) else 0
        try:
            slots = slots or (slots_of(facts[host.name], rule) if host.name in facts else 0)
        except HostError as error:
            errors[host.name] = error
        counted.append(replace(host, slots=slots, slots_by_default=False) if slots else host)
    return tuple(counted), errors
