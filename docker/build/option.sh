#!/bin/bash
# Builds what only some networks have a use for into /install: option.sh gdrcopy|ucc|ofi SHA256. Without a source in
# /source nothing is built: that is the default.
#   gdrcopy  copies small messages between host and GPU, for UCX; its driver is the host's
#   ucc      collectives of Open MPI on GPUs and over the network's own
#   ofi      aws-ofi-nccl: NCCL over libfabric, which EFA and Slingshot need
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

mkdir -p /install /wheels && touch /wheels/libraries.txt
[ -n "$(ls /source)" ] || exit 0
unpack "$2" "/build/$1"
cd "/build/$1"
with_ccache
[ -x configure ] || [ ! -x autogen.sh ] || ./autogen.sh
case $1 in
  gdrcopy)
    make --jobs "$(jobs 1)" prefix=/usr/local CUDA="${CUDA_HOME:?}" lib
    make prefix=/usr/local DESTDIR=/install CUDA="$CUDA_HOME" lib_install
    [ -f /install/usr/local/include/gdrapi.h ]
    ;;
  ucc)
    ./configure --prefix=/usr/local --with-ucx=/usr/local --with-cuda="${CUDA_HOME:?}" --with-nccl --disable-static
    make --jobs "$(jobs 1)"
    make install DESTDIR=/install
    ;;
  ofi)
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends libfabric-dev libhwloc-dev
    ./configure --prefix=/usr/local --with-libfabric=/usr --with-cuda="${CUDA_HOME:?}" --disable-tests
    make --jobs "$(jobs 1)"
    make install DESTDIR=/install
    printf 'libfabric1\nlibhwloc15\n' >/wheels/libraries.txt # the runtime image installs these
    ;;
esac
