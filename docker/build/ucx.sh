#!/bin/bash
# Builds UCX with CUDA into /install: ucx.sh SHA256
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$1" /build/ucx
cd /build/ucx
with_ccache
if [ ! -x configure ]; then # the archives of distributions have none, and templates of the packages are left out
  mkdir -p debian && touch debian/{rules,control,changelog}.in
  ./autogen.sh
fi
options=()
[ ! -f /usr/local/include/gdrapi.h ] || options+=(--with-gdrcopy=/usr/local)
./configure --prefix=/usr/local --with-cuda="${CUDA_HOME:?}" LDFLAGS="-L$CUDA_HOME/lib64/stubs" \
  "${options[@]}" --enable-mt --enable-cma --with-verbs --with-rdmacm --disable-static \
  --disable-logging --disable-debug --disable-assertions --disable-params-check --without-java --without-go
grep -q '^#define HAVE_CUDA 1' config.h # configure only warns when it does not find CUDA
make --jobs "$(jobs 1)"
make install-strip DESTDIR=/install
LD_LIBRARY_PATH=/install/usr/local/lib /install/usr/local/bin/ucx_info -b | grep 'HAVE_CUDA *1'
[ -f /install/usr/local/lib/ucx/libuct_cuda.so ] # a module of its own: hosts without a driver do without it
