"""The files that features write into the folder of a run, which comes from its host after a detached job."""

from __future__ import annotations

from ..core.job.fetch import FeatureFiles

METRICS = ("metrics.jsonl", "steps.jsonl")
_OF_A_RUN = (
    *METRICS,
    r"(pace|samples)\.jsonl",
    r"stacks(\.restart-\d{1,9})?\.txt",
    r"returned/rank-\d{1,7}-\d{1,9}\.json",
)
FILES = FeatureFiles("|".join(_OF_A_RUN), METRICS)
