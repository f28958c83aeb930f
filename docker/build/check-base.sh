#!/bin/bash
# Compares the base image with the versions that were asked for, in the first minute of a build, and names every
# difference: check-base.sh devel|runtime|python
set -euo pipefail

differences=0
# compare NAME WANTED FOUND
compare() {
  [ -n "$2" ] && [ "$2" != "$3" ] || return 0
  echo "==> the base image has $1 ${3:-in no version}, and $2 is asked for" >&2
  differences=$((differences + 1))
}

# defined NAME FILE ...: the number that a C header gives a name, of the first header that there is.
defined() {
  local name=$1 file
  for file in "${@:2}"; do
    [ -e "$file" ] || continue
    sed -n "s/^#define *$name *\([0-9]*\).*/\1/p" "$file" | head -n 1
    return
  done
}

# three PREFIX FILE ...: the version in a header that has PREFIX_MAJOR, and so on.
three() {
  local names=("$1_MAJOR" "$1_MINOR" "$1_PATCH") parts=() name
  [ "$1" != CUDNN ] || names[2]=CUDNN_PATCHLEVEL
  for name in "${names[@]}"; do parts+=("$(defined "$name" "${@:2}")"); done
  [ -z "${parts[0]}" ] || (IFS=. && echo "${parts[*]}")
}

# of_library NAME: the version in the name of the file that the loader finds: libnccl.so.2.28.3 is 2.28.3.
of_library() {
  local path
  path=$(ldconfig -p | awk -v name="$1.so." 'index($1, name) == 1 && !found++ {print $NF}')
  [ -z "$path" ] || readlink -f "$path" | sed -n 's/.*\.so\.\([0-9.]*\)$/\1/p'
}

first_two() { cut -d. -f1,2 <<<"$1"; }

devel() {
  local cuda
  cuda=$(defined CUDA_VERSION /usr/local/cuda/include/cuda.h) # 13020 is 13.2
  compare CUDA "$(first_two "$CUDA_RELEASE")" "${cuda:+$((cuda / 1000)).$((cuda / 10 % 100))}"
  compare NCCL "${NCCL_RELEASE:-}" "$(three NCCL /usr/include/nccl.h /usr/local/cuda/include/nccl.h)"
  compare cuDNN "${CUDNN_RELEASE:-}" \
    "$(three CUDNN /usr/include/cudnn_version.h /usr/include/*/cudnn_version*.h /usr/local/cuda/include/cudnn_version.h)"
}

runtime() {
  local cudnn
  compare CUDA "$(first_two "$CUDA_RELEASE")" "$(first_two "$(of_library libcudart)")"
  compare NCCL "${NCCL_RELEASE:-}" "$(of_library libnccl)"
  cudnn=$(of_library libcudnn)
  [[ -n $cudnn && $cudnn != *.*.* ]] || compare cuDNN "${CUDNN_RELEASE:-}" "$cudnn" # PyPI's file has only the first number
}

case ${TARGETARCH:-amd64} in
  amd64 | arm64) ;;
  *) compare "the architecture" "amd64 or arm64" "$TARGETARCH" ;;
esac
case $1 in
  python) compare Python "${PYTHON_VERSION:-}" "$(python3 -c 'import sys; print(*sys.version_info[:2], sep=".")')" ;;
  devel | runtime) [ -z "${CUDA_RELEASE:-}" ] || "$1" ;;
esac
if ((differences)); then
  echo "==> name another base, or change docker/versions.json and write docker/docker-bake.json again" >&2
  exit 1
fi
