#!/bin/bash
# Starts two ranks, before hours of PyTorch: mpi4py has the Open MPI that was compiled, and Open MPI starts. With CUDA and
# no GPU some versions of it crash in one start of twenty (open-mpi/ompi#13044), so there it starts fifty times.
set -euo pipefail

cd "$(dirname "$(python3 -c 'import mpi4py; print(mpi4py.__file__)')")"
ldd MPI*.so | grep ' /usr/local/lib/libmpi\.so'
starts=1
if [ -n "${CUDA_HOME:-}" ]; then
  starts=50
  ompi_info --parsable --all | grep mpi_built_with_cuda_support:value:true
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for start in $(seq "$starts"); do
  timeout 120 mpirun --oversubscribe -n 2 python3 -m mpi4py.bench helloworld >/tmp/said 2>&1 \
    || { echo "==> start $start of $starts failed with status $?:" >&2; cat /tmp/said >&2; exit 1; }
done
cat /tmp/said
rm /tmp/said
