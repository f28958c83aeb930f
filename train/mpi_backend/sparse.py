"""all_reduce of sparse tensors: all ranks gather the coordinates and values of all, and add them up."""

from __future__ import annotations

import torch

from .dense import all_gather, all_gather_single
from .library import MPI


def all_reduce(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Replace the COO tensor by the sum over all ranks, coalesced; each rank may have other coordinates."""
    part = tensor.detach().coalesce()
    counts = torch.empty(comm.size, dtype=torch.int64, device="cpu")
    all_gather_single(comm, counts, torch.tensor([part.values().shape[0]], device="cpu"))
    lengths = counts.tolist()
    values = [part.values().new_empty((length, *part.values().shape[1:])) for length in lengths]
    # One row for each element, so that each rank's coordinates are contiguous.
    coordinates = [part.indices().new_empty((length, part.sparse_dim())) for length in lengths]
    all_gather(comm, values, part.values())
    all_gather(comm, coordinates, part.indices().t().contiguous())
    total = torch.sparse_coo_tensor(
        torch.cat(coordinates).t(),
        torch.cat(values),
        tensor.shape,
        device=tensor.device,
        check_invariants=True,
    )
    with torch.no_grad():  # not detach(), which copies what copy_ replaces in a sparse tensor
        tensor.copy_(total.coalesce())
