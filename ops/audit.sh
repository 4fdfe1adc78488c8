#!/usr/bin/env bash
# What is depended on: licences, sources, bans, duplicates (deny.toml), and the advisories against it.
#
# Fails on what is found. What cannot be looked at here, because a tool or the advisories cannot be
# fetched, is said and skipped: everything else of `make check` needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly ADVISORIES=https://github.com/RustSec/advisory-db
readonly FETCH_SECONDS=20
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export PATH=$TARGET/tools/bin:$PATH GIT_TERMINAL_PROMPT=0

skipped() {
  echo "ops/audit.sh: SKIPPED: $*" >&2
}

if ! ops/deps.sh audit; then
  skipped "licences, sources, bans, duplicates and advisories: the tools could not be installed"
  exit 0
fi
# Of all that could be built; metadata is read from the lock file and what is fetched already.
cargo deny --locked check --hide-inclusion-graph bans licenses sources
if ! timeout "$FETCH_SECONDS" git ls-remote --exit-code "$ADVISORIES" HEAD >/dev/null 2>&1; then
  skipped "advisories (cargo deny, cargo audit): $ADVISORIES cannot be reached from here"
  exit 0
fi
cargo deny --locked check --hide-inclusion-graph advisories
cargo audit --deny yanked
# The fuzzing driver is built with the same versions, and one library more.
cp Cargo.lock fuzz/Cargo.lock
cargo metadata --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
cargo audit --deny yanked --file fuzz/Cargo.lock
