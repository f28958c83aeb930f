"""all_reduce of sparse tensors: every rank's coordinates and values to all, which add them up."""

from __future__ import annotations

import torch

from ..job.mpi_world import MPI
from .collectives import all_gather, all_gather_single


def all_reduce(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Replace the COO tensor by the sum over all ranks, coalesced."""
    part = tensor.detach().coalesce()
    counts = torch.empty(comm.size, dtype=torch.int64)
    all_gather_single(comm, counts, torch.tensor([part.values().shape[0]]))
    lengths = counts.tolist()
    values = [part.values().new_empty((length, *part.values().shape[1:])) for length in lengths]
    # A row for each element, so that a rank's coordinates are contiguous.
    places = [part.indices().new_empty((length, part.sparse_dim())) for length in lengths]
    all_gather(comm, values, part.values())
    all_gather(comm, places, part.indices().t().contiguous())
    total = torch.sparse_coo_tensor(
        torch.cat(places).t(), torch.cat(values), tensor.shape, check_invariants=True
    )
    with torch.no_grad():  # not detach(): of a sparse tensor that is a copy of what copy_ replaces
        tensor.copy_(total.coalesce())
