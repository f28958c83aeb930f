#!/bin/bash
# Fits the node's sshd_config to the sshd of this base, and proves that it starts: sshd.sh [SSHD]. Settings that only
# some versions know would stop all others: an sshd that meets one ends with "Bad configuration option".
set -euo pipefail

sshd=${1:-/usr/sbin/sshd}
config=${SSHD_CONFIG:-/etc/muster/sshd_config}
key=$(mktemp -u)
trap 'rm -f "$key" "$key.pub"' EXIT
ssh-keygen -q -t ed25519 -N '' -f "$key" # the node's own key is mounted when it runs

mkdir -p "$config.d"
known() { "$sshd" -t -f "$1" -h "$key"; }

# Since OpenSSH 9.8 an address whose logins fail is locked out; a launcher's many logins come from one address.
penalties=$config.d/10-penalties.conf
echo 'PerSourcePenalties no' >"$penalties"
said=$(known "$penalties" 2>&1) || { grep -q 'Bad configuration option' <<<"$said" && rm "$penalties"; }

known "$config"
echo "sshd: $(ssh -V 2>&1): $config is good, with $(find "$config.d" -name '*.conf' | wc -l) file of $config.d"
