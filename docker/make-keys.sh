#!/bin/sh
# Makes the keys of the practice cluster, once, and pins them everywhere. Runs as root in the service `keys`.
#   /trust/NODE  the volume that NODE alone mounts: its host key, who may log in, known hosts
#   /muster      .muster/ of the user's machine, whose path there is $MUSTER_DIR
#   $NODES       "node1:2201 node2:2202": every node, and its port on the user's machine
#   $HEADS       "node1": the nodes that may log in to the others, and so get the cluster's key; by default the first
# The volumes hold the truth and everything else is written again each time, so `down --volumes` and `up` leave
# nothing stale. Files are moved into place: a node that is running never reads half of one.
set -eu
umask 077

case $MUSTER_DIR in
  /*) ;;
  *) echo "MUSTER_DIR must be an absolute path, got '$MUSTER_DIR'" >&2; exit 2 ;;
esac

names=$(for node in $NODES; do echo "${node%:*}"; done)
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# The cluster's key lives in the first node's volume. A detached job's driver, and mpirun by hand, log in from there.
first=$(echo "$names" | head -n 1)
heads=" $first ${HEADS:-} "
of=/trust/$first/folder
if [ -s "$of" ] && [ "$(cat "$of")" != "$MUSTER_DIR" ]; then
  echo "the practice cluster of this name belongs to $(cat "$of"), and stays as it is;" \
    "give that of $MUSTER_DIR another name: COMPOSE_PROJECT_NAME=NAME" >&2
  exit 2
fi
echo "$MUSTER_DIR" >"$of"
if [ -e /compose.yaml ] && [ "$(stat -c %u /muster)" = 0 ]; then # made by the engine, unless all is root's
  chown --reference=/compose.yaml /muster
fi
[ -e /muster/.gitignore ] || {
  echo '# Keys: none of it belongs in git.'
  echo '*'
} >/muster/.gitignore
chown --reference=/muster /muster/.gitignore
key=/trust/$first/id_ed25519
[ -s "$key" ] || ssh-keygen -q -t ed25519 -N '' -C muster-cluster -f "$key"
cp "$key" "$key.pub" "$new"
# restrict: no forwarding, no start-up file. pty: `muster shell` opens a terminal.
echo "restrict,pty $(cat "$key.pub")" >"$new/authorized_keys"

for name in $names; do
  host_key=/trust/$name/ssh_host_ed25519_key
  [ -s "$host_key" ] || ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$host_key"
  echo "$name,[$name]:2222 $(cut -d' ' -f1,2 "$host_key.pub")"
done >"$new/known_hosts"

for name in $names; do
  case $heads in
    *" $name "*) files='id_ed25519 id_ed25519.pub authorized_keys known_hosts' ;;
    *) files='authorized_keys known_hosts' && rm -f "/trust/$name/id_ed25519" "/trust/$name/id_ed25519.pub" ;;
  esac
  for file in $files; do
    cp "$new/$file" "/trust/$name/.$file"
    mv "/trust/$name/.$file" "/trust/$name/$file"
  done
  chown -R muster:muster "/trust/$name"
done

# The user's side. Published ports rather than container addresses: those are out of reach on Docker Desktop.
for node in $NODES; do
  name=${node%:*} port=${node#*:}
  sed -n "s/^$name,/[127.0.0.1]:$port,$name,/p" "$new/known_hosts" >>"$new/host_known_hosts"
  cat >>"$new/ssh_config" <<END
Host $name
    HostName 127.0.0.1
    Port $port
    User muster
    IdentityFile "$MUSTER_DIR/id_ed25519"
    IdentitiesOnly yes
    UserKnownHostsFile "$MUSTER_DIR/known_hosts"
    StrictHostKeyChecking yes
    BatchMode yes
END
done
{
  echo "# Every other name is yours, as it was."
  # shellcheck disable=SC2086 # one word a name
  echo "Host *$(printf ' !%s' $names)"
  echo "    Include ~/.ssh/config"
} >>"$new/ssh_config"

mv "$new/host_known_hosts" "$new/known_hosts"
# ssh_config first: `muster cluster down` knows by it that the other files are the practice cluster's.
for file in ssh_config id_ed25519 id_ed25519.pub known_hosts; do
  cp "$new/$file" "/muster/.$file"
  chown --reference=/muster "/muster/.$file" # so the user can read them, and remove them
  mv "/muster/.$file" "/muster/$file"
done
echo "keys: $(echo "$names" | wc -l) nodes, ssh -F $MUSTER_DIR/ssh_config $(echo "$names" | head -n 1)"
