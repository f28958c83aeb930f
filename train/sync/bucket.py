"""Gradients side by side in one flat tensor, so that one message carries many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn


class Bucket:
    """`flat`, on the CPU, in `dtype`; `views` are its parts, shaped as the parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self.parameters = parameters
        self.flat = torch.zeros(sum(each.numel() for each in parameters), dtype=dtype)
        parts = torch.split(self.flat, [each.numel() for each in parameters])
        self.views = [part.view_as(each) for part, each in zip(parts, parameters, strict=True)]
        self.missing = set(range(len(parameters)))

    def put(self, index: int, scale: float) -> bool:
        """Take in the gradient of a parameter, times `scale`; returns whether the bucket is full now."""
        gradient = self.parameters[index].grad
        if gradient is None:  # not part of this backward pass
            self.views[index].zero_()
        elif gradient.is_cpu:
            torch.mul(gradient, scale, out=self.views[index])
        else:
            self.views[index].copy_(gradient * scale)
        self.missing.discard(index)
        return not self.missing

    def take_back(self) -> None:
        """Make the views the gradients where they can be, else copy; and be empty again."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            same = view.dtype == parameter.dtype and parameter.is_cpu
            parameter.grad = view if same else view.to(parameter.device, parameter.dtype)
        self.missing = set(range(len(self.parameters)))


def fill_buckets(
    parameters: Iterable[nn.Parameter], limit: int, wire: torch.dtype | None = None
) -> list[Bucket]:
    """Put parameters into buckets of at most `limit` bytes, in the order in which backward reaches them.

    That is about the reverse of theirs. A parameter above the limit has a bucket to itself; one bucket holds
    one type, `wire` if given.
    """
    runs: list[list[nn.Parameter]] = []
    room, of_type = 0, None
    for parameter in reversed(list(parameters)):
        dtype = wire or parameter.dtype
        size = parameter.numel() * dtype.itemsize
        if not runs or dtype != of_type or size > room:
            runs.append([])
            room, of_type = limit, dtype
        runs[-1].append(parameter)
        room -= size
    return [Bucket(run, wire or run[0].dtype) for run in runs]
