#!/bin/sh
# Collects the files of an image: the binaries of a release, the shared libraries that they need,
# certificate authorities, and a user.
#
#     collect.sh UNPACKED IMAGE
set -eu
unpacked=$1 image=$2
mkdir -p "$image/usr/bin" "$image/etc/ssl/certs" "$image/tmp" "$image/run/spillway"
cp "$unpacked"/*/bin/* "$image/usr/bin/"
for binary in "$image"/usr/bin/*; do
  # The loader lists what it would load, itself included.
  ldd "$binary" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*\) (.*/\1/p'
done | sort -u | while read -r library; do
  mkdir -p "$image$(dirname "$library")"
  cp --dereference "$library" "$image$library"
done
cp "$unpacked"/*/ca-certificates.crt "$image/etc/ssl/certs/" 2>/dev/null ||
  cp /etc/ssl/certs/ca-certificates.crt "$image/etc/ssl/certs/"
echo 'spillway:x:65532:65532::/:/nonexistent' > "$image/etc/passwd"
echo 'spillway:x:65532:' > "$image/etc/group"
echo 'hosts: files dns' > "$image/etc/nsswitch.conf"
chmod 1777 "$image/tmp"
chown 65532:65532 "$image/run/spillway"
