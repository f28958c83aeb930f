#!/bin/bash
# Builds UCX, with CUDA if the base has it: ucx.sh ADDRESS SHA256
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$1" "$2" /build/ucx
cd /build/ucx
with_ccache
if [ ! -x configure ]; then # the archives of distributions have none, and templates of the packages are left out
  mkdir -p debian && touch debian/{rules,control,changelog}.in
  ./autogen.sh
fi
options=()
[ -z "$CUDA_HOME" ] || options+=(--with-cuda="$CUDA_HOME" LDFLAGS="-L$CUDA_HOME/lib64/stubs")
./configure --prefix=/usr/local "${options[@]}" --enable-mt --enable-cma --with-verbs --with-rdmacm --disable-static \
  --disable-logging --disable-debug --disable-assertions --disable-params-check --without-java --without-go
make --jobs "$(jobs 1)"
make install-strip DESTDIR=/install/ucx
keep ucx
[ -n "$CUDA_HOME" ] || exit 0
ucx_info -b | grep 'HAVE_CUDA *1' # configure only warns when it does not find CUDA
[ -f /usr/local/lib/ucx/libuct_cuda.so ] # a module of its own: hosts without a driver do without it
