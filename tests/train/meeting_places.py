"""The job of test_rendezvous.py: meet at each place in turn that is an argument, and count the ranks."""

import os
import sys

import torch.distributed as dist

from muster.train.job.group import process_group
from muster.train.job.ranks import Ranks

for place in sys.argv[1:]:
    with process_group(Ranks.from_env(os.environ), init=place) as group:
        assert group.all_reduce_sum(1.0) == [group.world_size]
    assert not dist.is_initialized()
    if group.rank == 0:
        sys.stdout.write(f"{group.world_size} ranks met at {place}\n")
