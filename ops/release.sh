#!/usr/bin/env bash
# Makes a release in dist/, from the commit that is checked out: Debian packages and an apt repository of
# them, a tarball, an OCI image, a Helm chart and plain manifests, an SBOM, notes, and checksums.
#
#     ops/release.sh [packages|tarball|image|chart|sbom|notes|repository|checksums]...
#
# Without arguments it makes all. Two runs give the same bytes: every time is that of the commit, and no
# path of this machine is in a binary (`ops/reproduce.sh` shows it). APT_KEY is the fingerprint of the
# GnuPG key that signs the repository; without it, the repository is not signed.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=ops/versions.sh
. ops/versions.sh
TARGET=${CARGO_TARGET_DIR:-target}
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
REVISION=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
ARCH=$(dpkg --print-architecture)
DIST=${DIST:-dist}
export SOURCE_DATE_EPOCH
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# The paths of this machine are in no binary, also not of C code (librdkafka).
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/spillway --remap-path-prefix=$cargo_home=/cargo"
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$PWD=/spillway -ffile-prefix-map=$cargo_home=/cargo"
export CXXFLAGS=$CFLAGS
export SPILLWAY_REVISION=${REVISION:0:12}

# A tar of a directory that depends on nothing but its files.
pack() {
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+rX,go-w -C "$1" -c "$2" | gzip -n -9 >"$3"
}

packages() {
  DEB_OUT=$DIST/debian ops/debian/build.sh spillway
  DEB_OUT=$DIST/debian ops/debian/build.sh spillway-kafka
}

tarball() {
  cargo build --release --locked -p request-receiver -p downstreamer -p spillway -p kafka_producer
  local name=spillway-$VERSION-linux-$ARCH stage
  stage=$(mktemp -d)
  mkdir -p "$stage/$name"/{bin,man,completions,ops}
  for binary in request-receiver downstreamer kafka_producer spillway; do
    strip --strip-all -o "$stage/$name/bin/$binary" "$TARGET/release/$binary"
    rm -rf "$stage/pages"
    "$TARGET/release/$binary" --generate "$stage/pages"
    for page in "$stage"/pages/*.[18]; do
      more=ops/debian/man/${page##*/}
      [ ! -f "$more" ] || cat "$more" >>"$page"
      cp "$page" "$stage/$name/man/"
    done
    find "$stage/pages" -type f ! -name '*.[18]' -exec cp {} "$stage/$name/completions/" \;
  done
  cp -r ops/redis.conf ops/systemd ops/nginx ops/prometheus ops/grafana ops/backup.sh "$stage/$name/ops/"
  cp -r docs README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$stage/$name/"
  pack "$stage" "$name" "$DIST/$name.tar.gz"
  rm -rf "$stage"
}

image() {
  local tar=spillway-$VERSION-linux-$ARCH.tar.gz
  [ -f "$DIST/$tar" ] || tarball
  buildah build --format oci --timestamp "$SOURCE_DATE_EPOCH" --tag "spillway:$VERSION" \
    --build-arg TARBALL="$DIST/$tar" --build-arg VERSION="$VERSION" --build-arg REVISION="$REVISION" \
    --build-arg CREATED="$(date --utc --date="@$SOURCE_DATE_EPOCH" +%FT%TZ)" .
  rm -rf "$DIST/image"
  buildah push --quiet "spillway:$VERSION" "oci:$DIST/image:$VERSION"
  pack "$DIST" image "$DIST/spillway-$VERSION-image-$ARCH.tar.gz"
  echo "the image's layers have $(du -bs "$DIST/image/blobs" | cut -f1) bytes"
}

chart() {
  local stage
  stage=$(mktemp -d)
  # Links become files: the chart stands alone.
  cp -rL ops/helm/spillway "$stage/spillway"
  sed -i "s/^version: .*/version: $VERSION/; s/^appVersion: .*/appVersion: $VERSION/" "$stage/spillway/Chart.yaml"
  pack "$stage" spillway "$DIST/spillway-$VERSION-chart.tgz"
  helm template spillway "$stage/spillway" --namespace spillway \
    --set clientSecret.existingSecret=spillway-client --set downstreamAppUrl=http://app:3000 \
    >"$DIST/spillway-$VERSION-kubernetes.yaml"
  rm -rf "$stage"
}

sbom() {
  local tool=$TARGET/tools/bin/cargo-cyclonedx
  [ "$("$tool" cyclonedx --version 2>/dev/null)" = "cargo-cyclonedx-cyclonedx $CARGO_CYCLONEDX" ] ||
    cargo install --locked --root "$TARGET/tools" --version "$CARGO_CYCLONEDX" cargo-cyclonedx
  for crate in request-receiver downstreamer kafka_producer spillway; do
    "$tool" cyclonedx --manifest-path "$crate/Cargo.toml" --format json --describe crate \
      --spec-version 1.5 --override-filename "sbom"
    mv "$crate/sbom.json" "$DIST/$crate-$VERSION.cdx.json"
  done
}

# The section of this version, and what it is compatible with.
notes() {
  awk -v version="$VERSION" '
    /^## / { on = ($2 == version) ; next }
    on { print }' CHANGELOG.md >"$DIST/notes.md"
  [ -s "$DIST/notes.md" ] || { echo "CHANGELOG.md has no section \"## $VERSION\"" >&2; exit 1; }
}

# An apt repository that a web server can serve as it is.
repository() {
  local root=$DIST/apt pool=$DIST/apt/pool lists=$DIST/apt/dists/stable/main/binary-$ARCH
  rm -rf "$root"
  mkdir -p "$pool" "$lists"
  cp "$DIST"/debian/*.deb "$pool/"
  (cd "$root" && dpkg-scanpackages --multiversion --arch "$ARCH" pool) >"$lists/Packages"
  gzip -n -9 -k "$lists/Packages"
  (cd "$root/dists/stable" && apt-ftparchive \
    -o APT::FTPArchive::Release::Origin=Spillway \
    -o APT::FTPArchive::Release::Suite=stable \
    -o APT::FTPArchive::Release::Codename=stable \
    -o APT::FTPArchive::Release::Components=main \
    -o APT::FTPArchive::Release::Architectures="$ARCH" release .) >"$root/Release"
  mv "$root/Release" "$root/dists/stable/Release"
  if [ -n "${APT_KEY:-}" ]; then
    gpg --batch --yes --local-user "$APT_KEY" --clearsign \
      --output "$root/dists/stable/InRelease" "$root/dists/stable/Release"
    gpg --batch --yes --export "$APT_KEY" >"$root/spillway.gpg"
  fi
}

checksums() {
  (cd "$DIST" && find . -maxdepth 2 -type f ! -name SHA256SUMS ! -path './image/*' ! -path './apt/*' |
    sed 's,^\./,,' | LC_ALL=C sort | xargs sha256sum) >"$DIST/SHA256SUMS.new"
  mv "$DIST/SHA256SUMS.new" "$DIST/SHA256SUMS"
}

mkdir -p "$DIST/debian"
[ $# -gt 0 ] || set -- packages tarball image chart sbom notes repository checksums
for part in "$@"; do
  echo "## $part"
  "$part"
done
