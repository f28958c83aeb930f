"""Slurm sites that are wrong in some way, from what their programs print."""

from __future__ import annotations

import pytest

from muster.deploy.features.slurm.site import NodeGroup, SlurmSite, judge_site, parse_config, parse_groups

CONFIG = parse_config(
    """Configuration data as of 2026-11-22T09:00:00
SLURM_VERSION           = 24.11.5
GresTypes               = (null)
"""
)
GROUPS = parse_groups("main|up|3|idle|none\nshort|up|1|mixed|none\nshort|up|2|idle|none\n")
WELL = SlurmSite(config=CONFIG, groups=GROUPS)


def site(partition: str = "", groups: str = "", **settings: str) -> SlurmSite:
    return SlurmSite(
        config={**CONFIG, **settings}, groups=parse_groups(groups) if groups else GROUPS, partition=partition
    )


def test_a_site_that_is_well_has_no_findings() -> None:
    assert judge_site(WELL) == ()
    assert CONFIG["grestypes"] == ""
    assert GROUPS[0] == NodeGroup("main", True, 3, "idle", "")


@pytest.mark.parametrize(
    ("broken", "findings"),
    [
        (SlurmSite(error="scontrol: Unable to contact slurm controller"), {"slurm.no-controller": "error"}),
        (site(partition="gpu"), {"slurm.no-partition": "error"}),
        (site("main", "main|down|3|idle|none"), {"slurm.partition-closed": "error"}),
        (site(groups="main|up|3|idle|none\nold|down|3|idle|none"), {"slurm.partition-closed": "warning"}),
        (
            site(groups="main|up|2|idle|none\nmain|up|1|drained*|bad disk | replaced"),
            {"slurm.nodes-unusable": "warning"},
        ),
        (
            site(groups="main|up|3|down*|Not responding"),
            {"slurm.nodes-unusable": "warning", "slurm.no-nodes": "error"},
        ),
        (site(slurm_version="19.05.8"), {"slurm.too-old": "error"}),
    ],
)
def test_each_defect_of_a_site_is_named_and_nothing_else(broken: SlurmSite, findings: dict[str, str]) -> None:
    judged = judge_site(broken)
    assert {finding.id: finding.severity for finding in judged} == findings
    assert all(finding.text and finding.remedy for finding in judged)


def test_a_reason_with_a_bar_is_kept() -> None:
    (group,) = parse_groups("main|up|1|drained*|bad disk | replaced")
    assert group.reason == "bad disk | replaced"
