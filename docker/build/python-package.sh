#!/bin/bash
# Builds a Python package against what this image has already: python-package.sh NAME ADDRESS SHA256
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

unpack "$2" "$3" "/build/$1"
cd "/build/$1"
with_ccache
MAX_JOBS=$(jobs 2)
export MAX_JOBS
install_wheel "$1"
