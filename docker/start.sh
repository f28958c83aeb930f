#!/bin/sh
# The first process below tini. A driver that is older than the image's CUDA would show as an error in the middle of
# a program; here it is one line, before anything starts. /usr/share/muster/cuda is in images with CUDA alone.
set -eu
cuda=/usr/share/muster/cuda
if [ -s "$cuda" ] && command -v nvidia-smi >/dev/null 2>&1; then
  wanted=$(cat "$cuda")
  said=$(timeout 20 nvidia-smi -q 2>&1) || said="$said
nvidia-smi failed, or did not answer within 20 s"
  runs=$(printf '%s\n' "$said" | sed -n 's/^CUDA[A-Za-z ]*Version *: *\([0-9][0-9.]*\).*/\1/p' | head -n 1)
  if [ -z "$runs" ]; then
    echo "muster: the NVIDIA driver does not say which CUDA it runs: $(printf '%s\n' "$said" | tail -n 1)" >&2
  elif [ "${runs%%.*}" -lt "${wanted%%.*}" ]; then
    echo "muster: this image is made with CUDA $wanted, and the driver of this host runs CUDA up to $runs." >&2
    if [ -z "${MUSTER_WITHOUT_GPUS:-}" ]; then
      echo "        Install a newer driver, take an image for CUDA ${runs%%.*}, or start it without GPUs. To start it all" >&2
      echo "        the same, for programs that leave the GPUs alone: MUSTER_WITHOUT_GPUS=1 in its environment." >&2
      exit 3
    fi
    echo "        It starts all the same, as MUSTER_WITHOUT_GPUS says: for programs that leave the GPUs alone." >&2
  fi
fi
exec "$@"
