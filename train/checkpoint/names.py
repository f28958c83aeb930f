"""Names of parameters that do not depend on what a model is wrapped in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

COMPILED = "_orig_mod"
"""What torch.compile calls the module that it wraps."""


def plain_name(name: str, model: nn.Module) -> str:
    """Return the name that a parameter or buffer has in `model` without torch.compile and DDP.

    torch.compile may wrap a whole model or modules inside it, and DistributedDataParallel may be inside or
    outside of it.
    """
    parts = [part for part in name.split(".") if part != COMPILED]
    if isinstance(getattr(model, COMPILED, model), DistributedDataParallel):
        parts = parts[1:]  # it calls the model module
    return ".".join(parts)


def parameter_names(states: Mapping[str, Any], optimizer: Optimizer) -> dict[nn.Parameter, str] | None:
    """Return the names of the optimizer's parameters, by the models among `states`.

    Parameters of several models have the names of these before their own. None if a parameter is of no model.
    """
    wanted = list(of_groups(optimizer))
    models = {name: value for name, value in states.items() if isinstance(value, nn.Module)}
    by_model = {name: _names(model) for name, model in models.items()}
    for names in by_model.values():
        if all(parameter in names for parameter in wanted):
            return {parameter: names[parameter] for parameter in wanted}
    every = {
        parameter: f"{model}.{name}" for model, names in by_model.items() for parameter, name in names.items()
    }
    return every if all(parameter in every for parameter in wanted) else None


def of_groups(optimizer: Optimizer) -> Iterable[nn.Parameter]:
    """Return the parameters of an optimizer, in the order of their numbers in its state_dict."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: plain_name(name, model) for name, parameter in model.named_parameters()}
