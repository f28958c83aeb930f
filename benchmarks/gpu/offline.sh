#!/bin/sh
# Makes an environment for the proof on a machine without a network: packages of the Python there stay visible, and
# the wheels of FOLDER (from `make gpu-wheels`) are added.
#
#   sh benchmarks/gpu/offline.sh FOLDER VENV [PYTHON]
set -eu
wheels=$1 venv=$2 python=${3:-python3}
"$python" -m venv --clear --without-pip "$venv"
"$python" -m pip --python "$venv/bin/python" install --quiet --no-index --no-deps --no-compile "$wheels"/*.whl
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# `--system-site-packages` shows those of the base interpreter only; PYTHON may be of a virtual environment. pip would
# take what it sees there for installed, so it comes last.
"$python" -c 'import sys; print(*[path for path in sys.path if path.endswith("-packages")], sep="\n")' \
  >"$site/machine.pth"
"$venv/bin/python" -c 'import torch, muster; print("torch", torch.__version__, "muster", *muster.__path__)'
