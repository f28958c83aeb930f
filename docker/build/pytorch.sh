#!/bin/bash
# Builds PyTorch, with CUDA if the base has it: pytorch.sh ADDRESS SHA256
# Every USE_ that matters is set, as PyTorch would look around and take, or leave, what it finds.
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$1" "$2" /build/pytorch
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
  patch --strip 1 --fuzz 0 </run/patches/torch-without-libuv.patch
}

settings_for_cuda() {
  export USE_CUDA=1 USE_CUDNN=1 USE_NCCL=1 USE_SYSTEM_NCCL=1 LDFLAGS="-L${CUDA_HOME:?}/lib64/stubs"
  # Of no base, or not of all: PyTorch would look for them, and take what one base has and another has not.
  export USE_MAGMA=0 USE_CUSPARSELT=0 USE_CUDSS=0 USE_CUFILE=0 USE_NVSHMEM=0
  if [ -L /usr/bin/cuda-gcc ]; then # Debian's nvcc takes an older g++ than Debian's own
    CC=$(basename "$(readlink /usr/bin/cuda-gcc)") CXX=$(basename "$(readlink /usr/bin/cuda-g++)")
    export CC CXX CUDAHOSTCXX=$CXX
  fi
  # CMake looks for CUDA's headers beside the nvcc that it takes, and the first on PATH may be ccache's own.
  export CUDACXX=$CUDA_HOME/bin/nvcc CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:?}
  export TORCH_NVCC_FLAGS="-Xfatbin -compress-all"
}

# A proof that the recipe compiles, links and starts, without the kernels that take longest: the CPU's for AVX2 and
# AVX512, each a compilation of the same files again; attention; and CUTLASS's two files for sm_90a alone, at which
# ptxas 12.4 crashes with the options below.
settings_for_a_proof() {
  export USE_FLASH_ATTENTION=0 USE_MEM_EFF_ATTENTION=0 USE_PRECOMPILED_HEADERS=1
  # What ccache's manual asks for with GCC ("Precompiled headers").
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
  export CXXFLAGS="${CXXFLAGS:-} -fpch-preprocess"
  export TORCH_NVCC_FLAGS="${TORCH_NVCC_FLAGS:-} -Xcicc -O1 -Xptxas -O1" # an eighth to a quarter of a kernel's time
  # setup.py gives CMake each variable of this form; the level stands after PyTorch's own -O2, so it counts.
  export CMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG"
  sed -i 's/if(CXX_AVX\(2\|512\)_FOUND)$/if(FALSE)/' cmake/Codegen.cmake
  sed -i 's/ MATCHES "\.\*compute_90\.\*")$/ MATCHES "none")/' cmake/Codegen.cmake caffe2/CMakeLists.txt
}

gib=2 promised=(USE_DISTRIBUTED USE_MPI USE_GLOO)
if [ -n "$CUDA_HOME" ]; then
  settings_for_cuda
  promised+=(USE_CUDA USE_NCCL USE_CUDNN)
  # A file of attention takes about 5 GB (pytorch#124018). 2.6.0 has no limit for these files alone, and the variable of
  # later releases has changed its name (pytorch#162253, pytorch#192305), so the limit is for all.
  [ "${PROFILE:-full}" = proof ] || gib=5
else
  export USE_CUDA=0 USE_NCCL=0
fi
if [[ $1 == *.dsc ]]; then
  settings_for_the_distribution
else
  export BLAS=OpenBLAS
  # Not upstream's requirements-build.txt, which would take any version and any file.
  requirements pytorch-build
fi
case ${PROFILE:-full} in
  full) ;;
  proof) settings_for_a_proof ;;
  *) say "PROFILE is full or proof, got $PROFILE"; exit 1 ;;
esac
MAX_JOBS=$(jobs "$gib")
export MAX_JOBS
if [ -n "${CONFIGURE_ONLY:-}" ]; then
  CMAKE_ONLY=1 python3 setup.py build --cmake-only
else
  install_wheel pytorch
fi
for wanted in "${promised[@]}"; do
  grep -qE "^$wanted:[A-Z]+=(1|ON)$" build/CMakeCache.txt || { say "PyTorch was configured without $wanted"; exit 1; }
done
