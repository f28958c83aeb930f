# Bases for the target cuda-debian, out of Debian and PyPI alone: for sites that reach no registry of NVIDIA's.
#
#     docker build --file docker/bases/debian-cuda.Dockerfile --target devel --tag muster-base:debian-cuda-devel docker
#     docker build --file docker/bases/debian-cuda.Dockerfile --target runtime --tag muster-base:debian-cuda-runtime docker
#
# CUDA 12.4.1 with its compiler is in trixie's section non-free, NCCL 2.22.3 in contrib; of cuDNN Debian has only a
# script that downloads it, so it comes from PyPI, in the version that PyTorch 2.6.0's wheels ask for. NVIDIA's licences
# hold for all three. The devel base is laid out as NVIDIA's are: /usr/local/cuda/{bin,include,lib64,lib64/stubs,nvvm}.
FROM debian:trixie-slim AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG DEBIAN_MIRROR=http://deb.debian.org/debian
RUN rm -f /etc/apt/apt.conf.d/docker-clean \
 && echo "deb ${DEBIAN_MIRROR} trixie contrib non-free" >/etc/apt/sources.list.d/non-free.list

FROM base AS cudnn
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked,id=muster-apt-cuda \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked,id=muster-lists-cuda \
    apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3-pip
# hadolint ignore=SC3009
RUN --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/cudnn.txt,target=/run/cudnn.txt \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
 && python3 -m pip install --no-deps --no-compile --target /wheel --require-hashes --requirement /run/cudnn.txt \
 && libraries=/install/usr/lib/$(uname -m)-linux-gnu \
 && mkdir -p /install/usr/lib && rm -f /wheel/nvidia/cudnn/{include,lib}/__init__.py \
 && mv /wheel/nvidia/cudnn/include /install/usr/include && mv /wheel/nvidia/cudnn/lib "$libraries" \
 && ln -s libcudnn.so.9 "$libraries/libcudnn.so"

FROM base AS devel
# Static libraries of 2 GB that nothing here is linked to stay away; the CUDA runtime's own are linked by nvcc.
RUN printf 'path-exclude=/usr/lib/*/lib%s*_static*.a\n' cublas cufft curand cusolver cusparse npp nvjpeg nvrtc nccl \
      >/etc/dpkg/dpkg.cfg.d/muster-static
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked,id=muster-apt-cuda \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked,id=muster-lists-cuda \
    apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      libnccl-dev nvidia-cuda-toolkit nvidia-cuda-toolkit-gcc
COPY --from=cudnn /install /
# Headers by themselves: with all of /usr/include as a folder of CUDA's, #include_next of the C++ library finds nothing.
# hadolint ignore=SC3009
RUN libraries=/usr/lib/$(uname -m)-linux-gnu \
 && mkdir -p /usr/local/cuda/{bin,include,nvvm} \
 && ln -s "$libraries" /usr/local/cuda/lib64 \
 && ln -s /usr/lib/nvidia-cuda-toolkit/libdevice /usr/local/cuda/nvvm/libdevice \
 && dpkg -L nvidia-cuda-toolkit | grep '^/usr/bin/.' | xargs ln -s --target-directory /usr/local/cuda/bin \
 && dpkg -L nvidia-cuda-dev libcu++-dev libcub-dev libcupti-dev libnvidia-ml-dev libthrust-dev \
    | grep -E '^/usr/include/[^/]+$' | sort -u | xargs ln -s --target-directory /usr/local/cuda/include \
 && test -e /usr/local/cuda/lib64/stubs/libcuda.so && ldconfig && ldconfig -p | grep libcudnn.so.9

# What the devel base's compilers link programs to, and no more: the driver's own library is the host's.
FROM base AS runtime
COPY dpkg-excludes /etc/dpkg/dpkg.cfg.d/muster
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked,id=muster-apt-cuda \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked,id=muster-lists-cuda \
    apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      libcublas12 libcudart12 libcufft11 libcupti12 libcurand10 libcusolver11 libcusparse12 libnccl2 libnvjitlink12 \
      libnvrtc12 libnvtoolsext1
COPY --from=cudnn /install/usr/lib /usr/lib
RUN ldconfig && ldconfig -p | grep libcudnn.so.9 && ldconfig -p | grep libnccl.so.2
