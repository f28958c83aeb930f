#!/bin/sh
# Makes an environment for the proof on a machine without a network: packages of the Python there stay visible, and
# the wheels of FOLDER (from `make gpu-wheels`) are added.
#
#   sh benchmarks/gpu/offline.sh FOLDER VENV [PYTHON]
set -eu
wheels=$1 venv=$2 python=${3:-python3}
"$python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# `--system-site-packages` shows those of the base interpreter only; PYTHON may be of a virtual environment.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/machine.pth"
"$python" -m pip --python "$venv/bin/python" install --quiet --no-index --no-deps --no-compile "$wheels"/*.whl
"$venv/bin/python" -c 'import torch, muster; print("torch", torch.__version__, "muster", muster.__file__)'
