"""Applies the GPU rules of `fab check` in the role `gpu`: it turns the probe's output into findings.

Ansible forks a process for every task on every host, and each of these processes loads every filter plugin
of the play. So each filter imports what it needs itself: when the plugin imported the rules, that was half of
what these processes cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from muster.deploy.features.check.finding import Finding


def gpu_findings(probe_output: str, host: str, needs: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the findings about a host's GPUs, from the output of its probe."""
    from muster.deploy.core.decode import MALFORMED, from_json
    from muster.deploy.features.check.host import Needs, of_gpus
    from muster.deploy.features.check.messages import GpuReport

    try:
        report = from_json(GpuReport, json.loads(probe_output))
    except MALFORMED as error:
        raise AnsibleFilterError(f"{host}: what its probe of GPUs said makes no sense: {error}") from None
    wanted = Needs(
        cuda=str(needs["cuda"]) or None,
        architecture=str(needs.get("architecture", "")) or None,
        containers=bool(needs["containers"]),
    )
    return [asdict(finding) | {"line": line(finding)} for finding in of_gpus(host, report, wanted)]


def line(finding: Finding) -> str:
    """Return a finding as the line that setup prints."""
    return f"{finding.severity}: {finding.text} [{finding.id}]; {finding.remedy}"


def image_cuda(labels: Mapping[str, str], image: str) -> str:
    """Return an image's CUDA, from its label or its tag's target in docker/versions.json; "" for none."""
    from muster.deploy.features.image.image_versions import load, targets

    if labels.get("muster.cuda") or labels.get("muster.flavor", "").startswith("cpu"):
        return labels.get("muster.cuda", "")
    _, track = targets(load().values()).get(image.rpartition(":")[2], ("", None))
    return (track.cuda if track else None) or ""


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_gpu_findings": gpu_findings, "muster_image_cuda": image_cuda}
