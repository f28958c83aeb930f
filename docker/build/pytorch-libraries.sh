#!/bin/bash
# Installs what Debian's source package of PyTorch is built with: pytorch-libraries.sh SOURCE
# Upstream's archive has all of it in its third_party folder, so another source needs nothing.
set -euo pipefail
[[ $1 == *.dsc ]] || exit 0
cuda=${CUDA_HOME:+-cuda}
packages=(
  flatbuffers-compiler flatbuffers-compiler-dev googletest libbenchmark-dev libblas-dev libcpp-httplib-dev
  libcpuinfo-dev libdnnl-dev libeigen3-dev libflatbuffers-dev libfmt-dev libfp16-dev
  libfxdiv-dev "libgloo$cuda-dev" libideep-dev liblapack-dev libnuma-dev libonnx-dev libprotobuf-dev
  libprotoc-dev libpsimd-dev libpthreadpool-dev libsleef-dev libsnappy-dev "libtensorpipe$cuda-dev" libzstd-dev
  mold nlohmann-json3-dev protobuf-compiler pybind11-dev python3-cffi python3-numpy python3-onnx
  python3-pybind11 python3-setuptools python3-typing-extensions python3-yaml
)
[ -z "$cuda" ] || packages+=(libcutlass-dev)
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends "${packages[@]}"
[ -n "$cuda" ] || exit 0
# Headers alone, whose package asks for one that downloads a cuDNN: the base has one.
cd /tmp
apt-get download libcudnn-frontend-dev
dpkg-deb --extract libcudnn-frontend-dev_*.deb /
