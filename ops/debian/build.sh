#!/usr/bin/env bash
# Builds a Debian package from a release build: `ops/debian/build.sh spillway|spillway-kafka`.
#
# The binaries write their man pages and completions (--generate); ops/debian/man adds the sections that
# are not about flags. DEB_VERSION overrides the version of Cargo.toml, DEB_OUT the directory
# target/debian. PREBUILT=1 takes the binaries of target/release as they are. The script installs cargo-deb
# at a pinned version into the build directory if it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=ops/versions.sh
. ops/versions.sh
TARGET=${CARGO_TARGET_DIR:-target}

case "${1:-}" in
  spillway) crate=spillway binaries=(request-receiver downstreamer archiver spillway) ;;
  spillway-kafka) crate=kafka_producer binaries=(kafka_producer) ;;
  *)
    echo "usage: ops/debian/build.sh spillway|spillway-kafka" >&2
    exit 64
    ;;
esac

tool=$TARGET/tools/bin/cargo-deb
[ "$("$tool" --version 2>/dev/null)" = "cargo-deb $CARGO_DEB" ] ||
  cargo install --locked --root "$TARGET/tools" --version "$CARGO_DEB" cargo-deb

# The commit that `--version` names.
export SPILLWAY_REVISION=${SPILLWAY_REVISION:-$(git rev-parse --short=12 HEAD 2>/dev/null || true)}
[ -n "${PREBUILT:-}" ] || cargo build --release --locked "${binaries[@]/#/--package=}"
for binary in "${binaries[@]}"; do
  pages=$TARGET/release/pages/$binary
  rm -rf "$pages"
  "$TARGET/release/$binary" --generate "$pages"
  for more in ops/debian/man/"$binary".[18]; do
    cat "$more" >>"$pages/${more##*/}"
  done
  gzip -n -9 "$pages"/*.[18]
done
"$tool" deb --package "$crate" --no-build --locked --strip \
  --output "${DEB_OUT:-$TARGET/debian}/" ${DEB_VERSION:+--deb-version "$DEB_VERSION"}
