#!/bin/bash
# Brings one source archive to /source: fetch.sh ADDRESS|debian:PACKAGE=VERSION SHA256
# shellcheck source=docker/build/lib.sh
source /run/build/lib.sh

mkdir -p /source
cd /source
case $1 in
  debian:*)
    echo "deb-src ${DEBIAN_MIRROR:?} trixie main" >/etc/apt/sources.list.d/source.list
    apt-get update -qq
    apt-get source --download-only --only-source "${1#debian:}"
    ;;
  *) curl --fail --silent --show-error --location --retry 5 --remote-name "$1" ;;
esac
verify "$(source_file /source)" "$2"
