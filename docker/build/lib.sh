# shellcheck shell=bash
# What the build scripts do alike. Sourced by them; needs bash.
set -euo pipefail

# The certificates of a site behind an inspecting proxy, for this command alone: a secret is in no layer.
if [ -s /run/secrets/ca ]; then
  export CURL_CA_BUNDLE=/run/secrets/ca PIP_CERT=/run/secrets/ca REQUESTS_CA_BUNDLE=/run/secrets/ca
fi

say() { printf '==> %s\n' "$*" >&2; }

# jobs GIB: how many compilers may run at once, when the largest takes GIB of memory.
jobs() {
  local cores memory fit
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  fit=$((memory / $1))
  ((fit < cores)) || fit=$cores
  ((fit > 0)) || fit=1
  say "$fit jobs: $cores cores, $memory GiB of memory free, $1 GiB a job"
  echo "$fit"
}

# source_file FOLDER: the one file there that vouches for all: a Debian source package's .dsc, else the archive.
source_file() {
  local found
  found=$(find "$1" -maxdepth 1 -name '*.dsc')
  [ -n "$found" ] || found=$(find "$1" -maxdepth 1 -name '*.tar.*')
  [ -f "$found" ] || { say "not one source archive in $1, but: ${found:-none}"; return 1; }
  echo "$found"
}

# unpack SHA256 FOLDER [OPTION]: the source in /source, if it is the one that was meant. The option is dpkg-source's.
unpack() {
  local file
  file=$(source_file /source)
  verify "$file" "$1"
  mkdir -p "$(dirname "$2")"
  if [[ $file = *.dsc ]]; then
    dpkg-source "${@:3}" --extract "$file" "$2" # with the distribution's patches; checks the sums that the .dsc has
  else
    mkdir "$2" && tar --extract --file "$file" --directory "$2" --strip-components 1
  fi
}

# verify FILE SHA256: stops the build, and says what to do, if the file is not known to be the right one.
verify() {
  local found
  found=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$found" = "$2" ] && return
  if [ "$2" = unverified ]; then
    say "the SHA-256 of $(basename "$1") is not pinned yet. This file has $found"
    say "Compare it with what its authors publish; if it is theirs, write it to docker/versions.json and run"
    say "python -m muster.deploy.image.bake >docker/docker-bake.json"
  else
    say "$(basename "$1") has the SHA-256 $found, and not $2: another file, or damaged"
  fi
  return 1
}

# require_answer URL: somebody listens there. ccache itself would go on in silence, and nothing would be kept.
require_answer() {
  local address=${1#*://}
  address=${address%%/*}
  timeout 10 bash -c ": </dev/tcp/${address%:*}/${address##*:}" 2>/dev/null && return
  say "the folder MUSTER_CACHE is served at $address, and this build cannot reach it, so nothing would be kept"
  say "A firewall may refuse what comes from containers; without --cache the engine's own cache mount is used"
  return 1
}

# with_ccache: compilers through ccache, so that a build that failed or was stopped goes on from there. Its files are
# kept by the machine that asked for the build, in the folder MUSTER_CACHE; else in a cache mount, which the engine may
# give empty without a word, so the log says what there is at the start.
with_ccache() {
  local kept
  export CCACHE_DIR=/ccache CCACHE_MAXSIZE=20G CCACHE_NOHASHDIR=1 PATH=/usr/lib/ccache:$PATH
  kept=$(ccache --print-stats | awk '$1 == "files_in_cache" {print $2}')
  if [ -s /run/secrets/ccache ]; then
    CCACHE_REMOTE_STORAGE=$(</run/secrets/ccache)
    export CCACHE_REMOTE_STORAGE CCACHE_REMOTE_ONLY=1
    require_answer "$CCACHE_REMOTE_STORAGE"
    say "ccache reads and writes the folder MUSTER_CACHE"
  elif [ "${kept:-0}" = 0 ]; then
    say "ccache is empty: everything is compiled. After an earlier build this means that the engine dropped its cache"
    say "mount, by --no-cache or to save room; with MUSTER_CACHE=FOLDER nothing is dropped (docs/image.md)"
  else
    say "ccache has $kept files of earlier builds"
  fi
  ccache --zero-stats >/dev/null
  trap 'ccache --show-stats >&2' EXIT
}
