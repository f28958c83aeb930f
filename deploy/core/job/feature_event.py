"""The base of the events that features define. Whoever defines one imports nothing of a job with it."""

from __future__ import annotations


class FeatureEvent:
    """An event that a feature defines, for the features that know it."""
