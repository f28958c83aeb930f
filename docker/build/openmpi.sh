#!/bin/bash
# Builds Open MPI with UCX, and with CUDA if the base has it: openmpi.sh ADDRESS SHA256
# PMIx, PRRTE, hwloc and libevent are its own, so that mpirun and the daemons are the same on every host. From 5.0.2 on
# what is built with CUDA runs without libcuda too. hwloc looks for no GPUs: with CUDA and no GPU some of its versions
# crash now and then (open-mpi/ompi#13044), and nothing here asks hwloc for GPUs.
# Nothing here uses OpenSHMEM, and that of 5.0.7 is an error to GCC 14: it gives a pointer a number without a cast.
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$1" "$2" /build/openmpi --skip-patches # Debian's have "pml = ^ucx" in openmpi-mca-params.conf: no UCX at all
cd /build/openmpi
with_ccache
options=()
[ -z "$CUDA_HOME" ] || options+=(--with-cuda="$CUDA_HOME" --with-cuda-libdir="$CUDA_HOME/lib64/stubs")
./configure --prefix=/usr/local "${options[@]}" --with-ucx=/usr/local \
  --with-pmix=internal --with-prrte=internal --with-hwloc=internal --with-libevent=internal \
  --disable-cuda --disable-nvml --disable-opencl --enable-prte-prefix-by-default \
  --disable-mpi-fortran --disable-oshmem --disable-sphinx --disable-static
[ -z "$CUDA_HOME" ] || grep '^#define OPAL_CUDA_SUPPORT 1' opal/include/opal_config.h
make --jobs "$(jobs 1)"
make install-strip DESTDIR=/install/openmpi
keep openmpi
