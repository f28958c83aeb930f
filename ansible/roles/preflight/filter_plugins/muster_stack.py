"""Chooses the training stack of a cluster whose owner has named none: one that needs nothing prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # Docker's names of processors, and uname's


def chosen_stack(
    hosts: Mapping[str, Mapping[str, Any]], image: str, here: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the stack, whether its image is to be built here, and why.

    `hosts` has preflight's facts about each host. `here` describes this machine's engine: its `architecture`
    (empty: no engine answers), whether it `builds`, and the labels of the `image`, None without that image.
    `named`: whether the owner named an image. `pulls`: whether hosts pull the image from a registry.
    """
    obstacle = "" if here["named"] else obstacle_to_image(hosts, image, here)
    if obstacle:
        return {"stack": "venv", "builds": False, "reason": obstacle}
    if here["named"]:
        reason = f"{image} is named as its image"
    elif here["pulls"]:
        reason = f"hosts can pull the image {image}"
    elif here["image"] is not None:
        reason = f"this machine's engine has the image {image}"
    else:
        reason = f"setup builds {image} in this machine's engine"
    builds = not here["named"] and not here["pulls"] and here["image"] is None
    return {"stack": "node", "builds": builds, "reason": reason}


def obstacle_to_image(hosts: Mapping[str, Mapping[str, Any]], image: str, here: Mapping[str, Any]) -> str:
    """Return why hosts cannot have the image; "" if they can."""
    if not here["architecture"] and not here["pulls"]:
        return "no container engine answers on this machine"
    labels = here["image"]
    is_for_cpus = labels is None or str(labels.get("muster.flavor", "")).startswith("cpu")
    gpus = [name for name, seen in hosts.items() if seen["nvidia_cards"] or seen["gpu"]]
    if gpus and is_for_cpus:
        return f"{gpus[0]} has NVIDIA GPUs, and {image} has no CUDA"
    if here["pulls"]:
        return ""
    machine = MACHINES.get(here["architecture"], here["architecture"])
    if others := sorted({str(seen["architecture"]) for seen in hosts.values()} - {machine}):
        return f"this machine's images are for {machine}, hosts are {', '.join(others)}"
    if labels is None and not here["builds"]:
        return f"this machine's engine has no {image}, and no buildx to build it"
    return ""


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_chosen_stack": chosen_stack}
