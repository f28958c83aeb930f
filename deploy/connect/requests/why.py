"""What is asked about a job that stands still."""

from __future__ import annotations

from ..arrivals import ArrivalsHere
from ..evidence import EvidenceHere
from .request import Request

WHY = Request("why", EvidenceHere, ranks=lambda answer: answer.ranks)
ARRIVALS = Request("arrivals", ArrivalsHere, ranks=lambda answer: answer.ranks)
