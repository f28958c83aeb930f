#!/bin/bash
# Builds UCX with CUDA into /install: ucx.sh SHA256
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$1" /build/ucx
cd /build/ucx
with_ccache
./configure --prefix=/usr/local --with-cuda="${CUDA_HOME:?}" LDFLAGS="-L$CUDA_HOME/lib64/stubs" \
  --enable-mt --enable-cma --with-verbs --with-rdmacm --disable-static \
  --disable-logging --disable-debug --disable-assertions --disable-params-check --without-java --without-go
grep -q '^#define HAVE_CUDA 1' config.h # configure only warns when it does not find CUDA
[ -z "${CONFIGURE_ONLY:-}" ] || exit 0
make --jobs "$(jobs 1)"
make install-strip DESTDIR=/install
