#!/bin/sh
# Keep of apt's lists what is installed and what could be: lists.sh PACKAGE... apt reads them whole whenever it is
# asked anything, and with all that Debian has this would be a third of the tests' time.
set -eu

wanted=$(mktemp)
dpkg-query --show --showformat='${Package}\n' >"$wanted"
for package in "$@" docker-cli; do # which not every release has
  apt-get install --simulate --no-install-recommends "$package" 2>/dev/null | awk '/^Inst/ {print $2}' >>"$wanted" || true
  echo "$package" >>"$wanted"
done
for list in /var/lib/apt/lists/*_Packages; do
  awk 'NR == FNR {wanted[$1]; next} /^Package:/ {kept = $2 in wanted} kept' "$wanted" "$list" >"$list.kept"
  mv "$list.kept" "$list"
done
rm -f "$wanted" /var/lib/apt/lists/*_Translation-* /var/cache/apt/*.bin
