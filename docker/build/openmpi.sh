#!/bin/bash
# Builds Open MPI with CUDA and UCX into /install: openmpi.sh SHA256
# PMIx, PRRTE, hwloc and libevent are its own, so that mpirun and the daemons are the same on every host. Parts that
# need libcuda are modules of their own, so that one image runs with and without a GPU (Open MPI's manual, 11.2.6).
# Nothing here uses OpenSHMEM, and that of 5.0.7 is an error to GCC 14: it gives a pointer a number without a cast.
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$1" /build/openmpi --skip-patches # Debian's have "pml = ^ucx" in openmpi-mca-params.conf: no UCX at all
cd /build/openmpi
with_ccache
options=()
[ ! -d /usr/local/include/ucc ] || options+=(--with-ucc=/usr/local)
./configure --prefix=/usr/local --with-cuda="${CUDA_HOME:?}" --with-cuda-libdir="$CUDA_HOME/lib64/stubs" \
  --with-ucx=/usr/local "${options[@]}" --enable-mca-dso=btl-smcuda,rcache-rgpusm,rcache-gpusm,accelerator-cuda \
  --with-pmix=internal --with-prrte=internal --with-hwloc=internal --with-libevent=internal \
  --enable-prte-prefix-by-default --disable-mpi-fortran --disable-oshmem --disable-sphinx --disable-static
grep -q '^#define OPAL_CUDA_SUPPORT 1' opal/include/opal_config.h
make --jobs "$(jobs 1)"
make install-strip DESTDIR=/install
