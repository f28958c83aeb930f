"""cuBLAS and the driver's memcpy, called without PyTorch's functions; on a CPU, stand-ins for them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT = 0, -1
COMPUTE_32F, COMPUTE_64F = 68, 70  # cublasComputeType_t
# cudaDataType and the type in which it is added up.
CUDA_TYPES = {
    torch.float64: (1, COMPUTE_64F),
    torch.float32: (0, COMPUTE_32F),
    torch.bfloat16: (14, COMPUTE_32F),
    torch.float16: (2, COMPUTE_32F),
}


@dataclass(frozen=True)
class _Call:
    """A function of a library with its arguments, and the tensors whose memory it uses."""

    function: Callable[..., int]
    words: tuple[object, ...]
    tensors: tuple[torch.Tensor, ...]

    def __call__(self) -> None:
        _require(self.function(*self.words))


def memcpy(size: int, device: torch.device) -> Callable[[], object]:
    """A copy of so many bytes within the memory of a device."""
    source = torch.arange(256, dtype=torch.uint8, device=device).repeat(size // 256)
    target = torch.empty_like(source)
    if device.type != "cuda":
        return lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
    copy = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoDAsync_v2
    words = (
        ctypes.c_uint64(target.data_ptr()),
        ctypes.c_uint64(source.data_ptr()),
        ctypes.c_size_t(size),
        _stream(),
    )
    return _Call(copy, words, (source, target))


def gemm(rows: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """A product of square matrices of random numbers."""
    left, right = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)
    if device.type != "cuda":
        return lambda: torch.mm(left, right, out=result)
    library, handle = _cublas(device), ctypes.c_void_p()
    _require(library.cublasCreate_v2(ctypes.byref(handle)))
    _require(library.cublasSetStream_v2(handle, _stream()))
    kind, compute = CUDA_TYPES[dtype]
    scalar = ctypes.c_double if compute == COMPUTE_64F else ctypes.c_float
    one, zero = scalar(1.0), scalar(0.0)
    # cuBLAS stores columns: the row-major product left @ right is right @ left there.
    words = (
        handle, CUBLAS_OP_N, CUBLAS_OP_N, rows, rows, rows, ctypes.byref(one),
        ctypes.c_void_p(right.data_ptr()), kind, rows, ctypes.c_void_p(left.data_ptr()), kind, rows,
        ctypes.byref(zero), ctypes.c_void_p(result.data_ptr()), kind, rows, compute, CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip
    product = _Call(library.cublasGemmEx, words, (left, right, result))
    product()
    expected = torch.mm(left[:1], right)
    if not torch.allclose(result[:1].double(), expected.double(), rtol=5e-2, atol=1.0):
        raise ValueError(f"cublasGemmEx of {dtype}: a wrong product")
    return product


def _cublas(device: torch.device) -> ctypes.CDLL:
    """The library that torch has loaded."""
    torch.mm(*(torch.zeros(8, 8, device=device) for _ in range(2)))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"\s(/\S*libcublas\.so\S*)$", maps, re.MULTILINE)
    if found is None:
        raise ValueError("torch has loaded no libcublas.so")
    return ctypes.CDLL(found.group(1))


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _require(status: int) -> None:
    if status:
        raise ValueError(f"a function of CUDA returned {status}")
