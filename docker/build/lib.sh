# shellcheck shell=bash
# What the build scripts do alike. Sourced by them; needs bash.
set -euo pipefail
shopt -s inherit_errexit # $(...) ends with its first failure too

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

# fetch ADDRESS SHA256: the path of a file that has this sum: of the user's folder, of an earlier build, or downloaded.
# The source package of a distribution is named by its .dsc, which has the sums of its archives: these are fetched too.
fetch() {
  local name=${1##*/} path
  [ -n "$1" ] || { say "no source is named; build it with: muster image build"; return 1; }
  path=/sources/$name
  if [ ! -f "$path" ]; then
    path=${DOWNLOADS:=/downloads}/$name
    if [ ! -f "$path" ] || ! sha256sum --check --status - <<<"$2  $path"; then
      curl --fail --silent --show-error --location --retry 5 --output "$path" "$1"
    fi
  fi
  verify "$path" "$2"
  if [[ $name = *.dsc ]]; then
    local sum file
    while read -r sum file; do fetch "${1%/*}/$file" "$sum" >/dev/null; done < <(archives_of "$path")
  fi
  echo "$path"
}

# archives_of DSC: sum and name of each file of a source package.
archives_of() {
  awk '/^[^ ]/ {inside = /^Checksums-Sha256:/} inside && /^ / {print $1, $3}' "$1"
}

# unpack ADDRESS SHA256 FOLDER [OPTION]: a source, if it is the one that was meant. The option is dpkg-source's.
unpack() {
  local file
  file=$(fetch "$1" "$2")
  mkdir -p "$(dirname "$3")"
  if [[ $file = *.dsc ]]; then
    dpkg-source "${@:4}" --extract "$file" "$3" # with the distribution's patches; its sums are checked
  else
    mkdir "$3" && tar --extract --file "$file" --directory "$3" --strip-components 1
  fi
}

# verify FILE SHA256: ends the build with a remedy if the file is not known to be the right one.
verify() {
  local found
  found=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$found" = "$2" ] && return
  if [ "$2" = unverified ]; then
    say "the SHA-256 of ${1##*/} is not pinned yet. This file has $found"
    say "Compare it with what its authors publish; if it is theirs, write it to docker/versions.json and run"
    say "python -m muster.deploy.features.image.bake >docker/docker-bake.json"
  else
    say "${1##*/} has the SHA-256 $found, and not $2: another file, or damaged"
  fi
  return 1
}

# keep NAME: links the files of /install/NAME, which the image gets, into /, where later stages compile with them.
keep() { cp --archive --link --force "/install/$1/." / && ldconfig; }

# requirements NAME [OPTION ...]: pip installs the pinned packages of docker/requirements/NAME.txt.
requirements() {
  python3 -m pip install --break-system-packages --require-hashes --requirement "/run/requirements/$1.txt" "${@:2}"
}

# keep_requirements NAME: the same, for the image too. Debian's and Ubuntu's pip puts "local" below the prefix itself.
keep_requirements() {
  requirements "$1" --no-deps --no-compile --ignore-installed --root /install/python --prefix /usr && keep python
}

# install_wheel NAME: builds the wheel of the source in this folder, and installs it. Without isolation: with the torch
# and the libmpi that are here, and not with others from an index.
install_wheel() {
  python3 -m build --wheel --no-isolation --skip-dependency-check --outdir "/wheels/$1"
  python3 -m pip install --break-system-packages --no-deps --no-compile --root "/install/$1" --prefix /usr "/wheels/$1"/*.whl
  keep "$1"
}

# with_ccache: compilers through ccache, so that a build that failed or was stopped continues from there. Its files are in
# a cache mount, which the engine may empty without a message, so the log says what is in it at the start.
with_ccache() {
  local kept
  export CCACHE_DIR=/ccache CCACHE_MAXSIZE=20G CCACHE_NOHASHDIR=1 PATH=/usr/lib/ccache:$PATH
  kept=$(ccache --print-stats | awk '$1 == "files_in_cache" {print $2}')
  if [ "${kept:-0}" = 0 ]; then
    say "ccache is empty: everything is compiled. After an earlier build this means that the engine dropped its cache"
    say "mount, by --no-cache or to save room (docs/image.md)"
  else
    say "ccache has $kept files of earlier builds"
  fi
  ccache --zero-stats >/dev/null
  trap 'ccache --show-stats >&2' EXIT
}
