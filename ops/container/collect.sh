#!/usr/bin/env bash
# Collects the files of an image: the binaries of a release, the shared libraries of this machine that
# they need, certificate authorities, a user, and directories that processes may write.
#
#     ops/container/collect.sh TARBALL IMAGE
#
# The libraries are those that the binaries were built with, so collect on the machine that built them.
set -euo pipefail
tarball=$1 image=$2

# /var/lib/spillway-redis is where compose.yaml mounts Redis' data.
mkdir -p "$image"/{usr/bin,etc/ssl/certs,tmp,run/spillway,var/lib/spillway,var/lib/spillway-redis}
tar --extract --file "$tarball" --directory "$image/usr/bin" --strip-components 2 --wildcards '*/bin/*'

# The loader lists what it would load, itself included.
needed() {
  local binary
  for binary in "$image"/usr/bin/*; do
    ldd "$binary"
  done
}
libraries=$(needed)
if missing=$(grep 'not found' <<<"$libraries"); then
  printf 'libraries are missing here:\n%s\n' "$missing" >&2
  exit 1
fi
sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*\) (.*/\1/p' <<<"$libraries" | sort -u |
  while read -r library; do
    mkdir -p "$image$(dirname "$library")"
    cp --dereference "$library" "$image$library"
  done
cp /etc/ssl/certs/ca-certificates.crt "$image/etc/ssl/certs/"
echo 'spillway:x:65532:65532::/:/nonexistent' >"$image/etc/passwd"
echo 'spillway:x:65532:' >"$image/etc/group"
echo 'hosts: files dns' >"$image/etc/nsswitch.conf"
# A volume that is mounted there for the first time gets these modes, whichever user the container has.
chmod 1777 "$image"/{tmp,run/spillway,var/lib/spillway,var/lib/spillway-redis}
