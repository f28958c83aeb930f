"""Gradients side by side in one flat tensor, so that one message carries many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn


class Bucket:
    """The gradients of some `parameters`, in `flat`: on the CPU, in `dtype`, with a mark for each at the end.

    The marks are 1 for a gradient and 0 for none; `views` are the gradients' parts of `flat`, shaped as the
    parameters. `missing` has the indices of the parameters that are still to be put in.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self.parameters = parameters
        sizes = [each.numel() for each in parameters]
        self.flat = torch.zeros(sum(sizes) + len(parameters), dtype=dtype)
        *parts, self.marks = torch.split(self.flat, [*sizes, len(parameters)])
        self.views = [part.view_as(each) for part, each in zip(parts, parameters, strict=True)]
        self.missing = set(range(len(parameters)))

    def put(self, index: int, scale: float) -> bool:
        """Copy the gradient of a parameter, times `scale`; returns whether the bucket is full now."""
        gradient = self.parameters[index].grad
        self.marks[index] = gradient is not None
        if gradient is None:  # not part of this rank's backward pass
            self.views[index].zero_()
        elif gradient.is_cpu:
            torch.mul(gradient, scale, out=self.views[index])
        else:
            self.views[index].copy_(gradient * scale)
        self.missing.discard(index)
        return not self.missing

    def hand_out(self) -> None:
        """Give the parameters their gradients: the views where they can be, else copies; then start anew.

        A parameter that no rank had a gradient for gets none: a gradient of zeros would let momentum and
        weight decay move it.
        """
        for parameter, view, ranks in zip(self.parameters, self.views, self.marks.tolist(), strict=True):
            same = view.dtype == parameter.dtype and parameter.is_cpu
            gradient = view if same else view.to(parameter.device, parameter.dtype)
            parameter.grad = gradient if ranks else None
        self.missing = set(range(len(self.parameters)))


def fill_buckets(
    parameters: Iterable[nn.Parameter], limit: int, wire: torch.dtype | None = None
) -> list[Bucket]:
    """Put parameters into buckets of at most `limit` bytes, in the order in which backward reaches them.

    That order is about the reverse of theirs. A parameter above the limit has a bucket to itself. A bucket
    holds one type: that of its parameters, or `wire`.
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
