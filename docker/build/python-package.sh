#!/bin/bash
# Builds a Python package against what this image has already, into /install: python-package.sh NAME SHA256
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$2" "/build/$1"
cd "/build/$1"
with_ccache
MAX_JOBS=$(jobs 2)
export MAX_JOBS
# PEP 517 without isolation: built with the torch and the libmpi that are here, and not with others from an index.
python3 -m build --wheel --no-isolation --skip-dependency-check --outdir /wheels
# Debian's and Ubuntu's pip puts "local" below the prefix itself.
python3 -m pip install --break-system-packages --no-deps --no-compile --root /install --prefix /usr /wheels/*.whl
