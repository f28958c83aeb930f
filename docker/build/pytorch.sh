#!/bin/bash
# Builds PyTorch's wheel into /wheels, and installs it into /install: pytorch.sh cpu-source|cuda SHA256
# Every USE_ that matters is said, as PyTorch would look around and take, or leave, what it finds.
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

flavour=$1
unpack "$2" /build/pytorch
cd /build/pytorch
with_ccache
export PYTORCH_BUILD_VERSION=${PYTORCH_VERSION:?} PYTORCH_BUILD_NUMBER=0 BUILD_TEST=0
export USE_DISTRIBUTED=1 USE_MPI=1 USE_GLOO=1 USE_MKLDNN=1 USE_TENSORPIPE=1
# A line a step, with how far it is; upstream would show each compiler's whole command line.
export CMAKE_GENERATOR=Ninja NINJA_STATUS='[%f/%t %p, %e s] ' LDFLAGS=
sed -i 's/^set(CMAKE_VERBOSE_MAKEFILE ON)/set(CMAKE_VERBOSE_MAKEFILE OFF)/' CMakeLists.txt

# The distribution's source package leaves out what the distribution has as libraries of its own.
settings_for_the_distribution() {
  export USE_ROCM=0 USE_SYSTEM_LIBS=1 BLAS=Generic GENERIC_BLAS_LIBRARIES=blas ONNX_NAMESPACE=onnx
  export USE_FBGEMM=0 USE_KINETO=0 USE_NNPACK=0 USE_PYTORCH_QNNPACK=0 USE_VULKAN=0 USE_XNNPACK=0 USE_ITT=0
  export CFLAGS="-Wno-dangling-reference -I/usr" CXXFLAGS="${CXXFLAGS:-} -Wno-dangling-reference -I/usr"
  LDFLAGS+=" -fuse-ld=mold"
  # Debian's patches are for packages, whose logs show each compiler's whole command line: 4 kB, 1,466 times.
  sed -i "s/max_jobs, '-v'\\]/max_jobs]/" tools/setup_helpers/cmake.py
  # A wheel keeps no symbolic links, and finds its libraries beside itself.
  sed -i '/^option(HAVE_SOVERSION/s/ ON)/ OFF)/' CMakeLists.txt
  sed -i 's/^set(CMAKE_INSTALL_RPATH "")/set(CMAKE_INSTALL_RPATH "${_rpath_portable_origin}")/' cmake/Dependencies.cmake
  rm -rf third_party/googletest && cp -r /usr/src/googletest third_party/
  (cd torch/csrc/jit/serialization && flatc --cpp --gen-mutable --scoped-enums mobile_bytecode.fbs)
}

settings_for_cpu_source() {
  export USE_CUDA=0 USE_NCCL=0
  settings_for_the_distribution
}

settings_for_cuda() {
  export USE_CUDA=1 USE_CUDNN=1 USE_NCCL=1 USE_SYSTEM_NCCL=1 LDFLAGS="-L${CUDA_HOME:?}/lib64/stubs"
  # CMake looks for CUDA's headers beside the nvcc that it takes, and the first on PATH may be ccache's own.
  export CUDACXX=$CUDA_HOME/bin/nvcc CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:?}
  export TORCH_NVCC_FLAGS="-Xfatbin -compress-all"
  case ${PROFILE:-full} in
    full) ;;
    # A proof that the recipe compiles, links and starts, without the kernels that take longest: attention, and the
    # CPU's for AVX2 and AVX512, each a compilation of the same files again; and without CUTLASS's two files for sm_90a
    # alone, at which ptxas 12.4 crashes with the options below.
    proof)
      export USE_FLASH_ATTENTION=0 USE_MEM_EFF_ATTENTION=0 USE_PRECOMPILED_HEADERS=1
      # What ccache's manual asks for with GCC ("Precompiled headers").
      export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      export CXXFLAGS="${CXXFLAGS:-} -fpch-preprocess"
      TORCH_NVCC_FLAGS+=" -Xcicc -O1 -Xptxas -O1" # an eighth to a quarter of a kernel's compilation
      sed -i 's/if(CXX_AVX\(2\|512\)_FOUND)$/if(FALSE)/' cmake/Codegen.cmake
      sed -i 's/ MATCHES "\.\*compute_90\.\*")$/ MATCHES "none")/' cmake/Codegen.cmake caffe2/CMakeLists.txt
      ;;
    *) say "PROFILE is full or proof, got $PROFILE"; return 1 ;;
  esac
  FLASH_ATTENTION_MAX_JOBS=$(jobs 5) # attention kernels take about 5 GB each (pytorch#124018)
  export FLASH_ATTENTION_MAX_JOBS
  if [[ $(source_file /source) == *.dsc ]]; then
    # Debian's nvcc takes an older g++ than Debian's own; MAGMA and what its CUDA is without would only be looked for.
    CC=$(basename "$(readlink /usr/bin/cuda-gcc)") CXX=$(basename "$(readlink /usr/bin/cuda-g++)")
    export CC CXX CUDAHOSTCXX=$CXX USE_MAGMA=0 USE_CUSPARSELT=0 USE_CUDSS=0 USE_CUFILE=0
    settings_for_the_distribution
    patch --strip 1 --fuzz 0 </run/patches/torch-without-libuv.patch
  else
    export BLAS=OpenBLAS
    # Not upstream's requirements-build.txt, which would take any version and any file.
    python3 -m pip install --break-system-packages --require-hashes --requirement /run/requirements/pytorch-build.txt
  fi
}

"settings_for_${flavour//-/_}"
MAX_JOBS=$(jobs 2)
export MAX_JOBS
# The front end works with setup.py, and with the trees that have none any more (pytorch#189758).
if [ -n "${CONFIGURE_ONLY:-}" ]; then
  CMAKE_ONLY=1 python3 setup.py build --cmake-only
else
  python3 -m build --wheel --no-isolation --skip-dependency-check --outdir /wheels
fi
for wanted in USE_DISTRIBUTED USE_MPI USE_GLOO $([ "$flavour" = cuda ] && echo USE_CUDA USE_NCCL USE_CUDNN); do
  grep -qE "^$wanted:[A-Z]+=(1|ON)$" build/CMakeCache.txt || { say "PyTorch was configured without $wanted"; exit 1; }
done
[ -z "${CONFIGURE_ONLY:-}" ] || exit 0
# Debian's and Ubuntu's pip puts "local" below the prefix itself.
python3 -m pip install --break-system-packages --no-deps --no-compile --root /install --prefix /usr /wheels/torch-*.whl
# Which packages have the libraries that it is linked to: the runtime image installs these. CUDA's count as well, for
# the runtime base lacks some of them, such as CUPTI, which the profiler needs. The driver's is the host's.
# cuDNN of a base may be of no package (PyPI's); the proof of the image shows that nothing is missing.
find /install -name '*.so*' -exec ldd {} + | awk '$3 ~ "^/(usr/(local/cuda[^/]*/)?)?(lib|targets)" {print $3}' | sort -u | xargs -r realpath \
  | { xargs -r dpkg-query --search 2>/dev/null || true; } | cut -d: -f1 | grep -vE '^lib(cuda1|nvidia-)' | sort -u >/wheels/libraries.txt
