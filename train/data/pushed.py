"""Data sets that `muster data push` brought: which files this host has, and batches out of its shard."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..job.failure import TrainError
from ..job.ranks import Ranks
from .sampler import GlobalBatchSampler


def folder(path: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder `path`, or if there is none, the data set of that name."""
    pushed = Path(environ.get("MUSTER_DATA", ""), path)
    return pushed if "MUSTER_DATA" in environ and not Path(path).exists() and pushed.exists() else Path(path)


class PushedData:
    """The data set `name` of this host. `all_files`: paths in the set, in its order, on every host the same.

    `files`: those that are on this host, as paths to open. `shard` of `of`: which part this host has; 0 of 1
    is the whole. Raises TrainError if the host has no such set.
    """

    def __init__(self, name: str, environ: Mapping[str, str] = os.environ) -> None:
        self.name = name
        # A push that comes during the job moves the name to another version; this one stays.
        self.root = Path(os.path.realpath(Path(environ.get("MUSTER_DATA", ""), name)))
        try:
            manifest = json.loads(self.root.with_name(f"{self.root.name}.json").read_bytes())
            self.shard, self.of = int(manifest["shard"]), int(manifest["of"])
            self.all_files = [str(file["path"]) for file in manifest["files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainError(f"no data set {name} on this host\nmuster data push FOLDER {name}") from error
        self.files = [self.root / path for path in self.all_files[self.shard :: self.of]]

    def sampler(
        self, *, batch_size: int, ranks: Ranks, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> GlobalBatchSampler:
        """Return this rank's sampler: indices of `files`, in equally many batches for every rank.

        Of a whole set, it divides global batches of `batch_size` among all ranks. Of a shard, each host draws
        its part of a batch from its own files, and leaves out the last one where other hosts have one less.
        Raises TrainError if the ranks or the batch cannot be divided by the shards.
        """
        if self.of == 1:
            samples, rank, world_size = len(self.files), ranks.rank, ranks.world_size
        else:
            if ranks.world_size != self.of * ranks.local_world_size or batch_size % self.of:
                raise TrainError(
                    f"{self.name} is on {self.of} hosts in shards: {ranks.world_size} ranks, "
                    f"{ranks.local_world_size} on this host, and batches of {batch_size} cannot be divided\n"
                    "start the same number of ranks on each of these hosts, "
                    "with a batch_size that the number of shards divides"
                )
            samples, batch_size, seed = (
                len(self.all_files) // self.of,
                batch_size // self.of,
                seed + self.shard,
            )
            rank, world_size = ranks.local_rank, ranks.local_world_size
        return GlobalBatchSampler(
            samples=samples,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
