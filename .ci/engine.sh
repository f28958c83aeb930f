#!/usr/bin/env bash
# A container engine on a bare Debian machine without an image registry, for CI: engine, plugins, base image.
# Idempotent. Users need none of this: they have an engine, and docker.io serves the base images.
# SOAK=1 makes the base images that only make soak needs, too.
set -euo pipefail

BASE_IMAGE=debian:trixie-slim
PLUGINS=/usr/local/lib/docker/cli-plugins
LOG=${DOCKERD_LOG:-/var/log/muster-dockerd.log}
PIDFILE=${DOCKERD_PIDFILE:-/run/muster-dockerd.pid} # names the dockerd started here; run stops that one only

say() { printf '==> engine: %s\n' "$*"; }

install_packages() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  command -v iptables >/dev/null || missing+=(iptables)
  command -v ssh >/dev/null || missing+=(openssh-client) # the tests reach the nodes with it
  command -v make >/dev/null || missing+=(make)
  command -v nft >/dev/null || missing+=(nftables) # reads the rules that setup would write
  command -v tcsh >/dev/null || missing+=(tcsh) # a login shell with a language of its own
  command -v tmux >/dev/null || missing+=(tmux) # a real terminal for muster top
  ((${#missing[@]})) || return 0
  say "apt installs ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
}

start_dockerd() {
  if docker info >/dev/null 2>&1; then
    say "a running dockerd is used"
    return
  fi
  say "dockerd starts, log in $LOG"
  setsid dockerd >"$LOG" 2>&1 </dev/null &
  local dockerd=$!
  echo "$dockerd" >"$PIDFILE"
  for _ in $(seq 120); do
    docker info >/dev/null 2>&1 && return
    kill -0 "$dockerd" 2>/dev/null || break
    sleep 0.5
  done
  say "dockerd does not answer; the end of its log:" >&2
  tail -n 20 "$LOG" >&2
  return 1
}

make_base_image() {
  local release=$1 root
  docker image inspect "debian:$release-slim" >/dev/null 2>&1 && return
  say "debian:$release-slim by debootstrap"
  root=$(mktemp -d)
  debootstrap --variant=minbase "$release" "$root" >"$root.log" || { tail -n 20 "$root.log" >&2; return 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - "debian:$release-slim" >/dev/null
  rm -rf "$root" "$root.log"
}

# Debian 12 has neither plugin. Those of Debian 13 run here as they are, and the base image's own apt fetches
# and verifies them, so that this machine's package sources stay untouched.
install_plugins() {
  docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 && return
  say "compose and buildx plugins from Debian 13 to $PLUGINS"
  local unpacked
  unpacked=$(mktemp -d)
  # tar rather than a bind mount: the engine may be on another machine or in another file system.
  docker run --rm --network host "$BASE_IMAGE" sh -ec '
    cd /tmp # where apt may write without being root
    { apt-get update -qq && apt-get download -qq docker-compose docker-buildx; } >&2
    for package in *.deb; do dpkg -x "$package" root; done
    tar -c -C "$(dirname "$(find root -name cli-plugins)")" cli-plugins' | tar -x -C "$unpacked"
  install -D -t "$PLUGINS" "$unpacked"/cli-plugins/*
  rm -rf "$unpacked"
}

install_packages
start_dockerd
make_base_image trixie
if [ "${SOAK:-}" = 1 ]; then make_base_image bookworm; fi
install_plugins
say "$(docker version --format 'docker {{.Server.Version}}'), $(docker compose version), $(docker buildx version | cut -d' ' -f2)"
