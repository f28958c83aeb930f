#!/bin/sh
# The health of a node: its sshd answers, with the host key that the others have pinned, and lets somebody in.
# This is no login, because only nodes that log in to others have a key.
set -eu
own=/etc/muster/ssh
ill() { echo "$1" >&2; exit 1; }

[ -s "$own/authorized_keys" ] || ill "nobody can log in: $own/authorized_keys is empty or missing"
key=$(ssh-keyscan -t ed25519 -p 2222 -T 5 127.0.0.1 2>/dev/null | sed -n 's/^[^#][^ ]* //p')
[ -n "$key" ] || ill 'no sshd answers at port 2222'
[ "$key" = "$(cut -d' ' -f1,2 "$own/ssh_host_ed25519_key.pub")" ] || ill "an sshd that is not this node's answers"
grep -qF " $key" "$own/known_hosts" || ill "$own/known_hosts has another key for this node"
