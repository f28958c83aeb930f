#!/bin/bash
# Writes /install/libraries.txt: the packages that have the libraries that all compiled parts are linked to. The runtime
# image installs these. CUDA's count as well, for the runtime base lacks some of them, such as CUPTI, which the profiler
# needs. The driver's is the host's. cuDNN of a base may be of no package (PyPI's); the proof of the image shows that
# nothing is missing.
set -euo pipefail
find /install -name '*.so*' -exec ldd {} + 2>/dev/null \
  | awk '$3 ~ "^/(usr/(local/cuda[^/]*/)?)?(lib|targets)" {print $3}' | sort -u | xargs -r realpath \
  | { xargs -r dpkg-query --search 2>/dev/null || true; } | cut -d: -f1 | grep -vE '^lib(cuda1|nvidia-)' | sort -u >/install/libraries.txt
