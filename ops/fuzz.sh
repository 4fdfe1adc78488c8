#!/usr/bin/env bash
# Fuzzes every target of fuzz/ for FUZZ_SECONDS each (default 600), or those named as arguments.
#
# What is found lies in fuzz/artifacts, and the exit is 1. What reached more code is kept beside the
# build; FUZZ_KEEP=1 takes the smallest set of it that reaches as much into fuzz/corpus. With RESULTS=
# a table is written there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TARGETS=(http pack replies retry_after round_trip settings times)
# No larger: a request with several bodies fits, and a small input says more.
readonly INPUT_BYTES_MAX=16384
# Above the 160 MiB that a pack may claim to decode to; what asks for more has found something.
readonly MALLOC_MB_MAX=256
SECONDS_EACH=${FUZZ_SECONDS:-600}
BUILD=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export PATH=$BUILD/tools/bin:$PATH

fuzz() {
  cargo +nightly fuzz run --target-dir "$BUILD/fuzz" "$1" "${@:2}"
}

stat_of() {
  sed -n "s/^stat::$2: *//p" "$1" | tail -1
}

# One target; a row of the table.
run() {
  local target=$1 corpus=$BUILD/fuzz-corpus/$1 log=$BUILD/fuzz-$1.log findings coverage
  mkdir -p "$corpus" "fuzz/artifacts/$target"
  local outcome=0
  fuzz "$target" "$corpus" "fuzz/corpus/$target" -- -max_total_time="$SECONDS_EACH" \
    -max_len=$INPUT_BYTES_MAX -malloc_limit_mb=$MALLOC_MB_MAX -timeout=20 -print_final_stats=1 \
    >"$log" 2>&1 || outcome=$?
  findings=$(find "fuzz/artifacts/$target" -type f | wc -l)
  coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1 | sed 's/cov: //; s/ ft: / \/ /')
  if [ "${FUZZ_KEEP:-0}" = 1 ]; then
    local smallest
    smallest=$(mktemp -d)
    fuzz "$target" "$smallest" "fuzz/corpus/$target" "$corpus" -- -merge=1 -max_len=2048 >>"$log" 2>&1
    # The seeds keep their names; what is new is added.
    cp -n "$smallest"/* "fuzz/corpus/$target/"
    rm -rf "$smallest"
  fi
  [ "$outcome" = 0 ] || [ "$findings" -gt 0 ] || { tail -5 "$log" >&2; return 1; }
  printf '| %s | %s | %s | %s | %s |\n' "$target" "$(stat_of "$log" number_of_executed_units)" \
    "${coverage:-?}" "$(stat_of "$log" peak_rss_mb) MiB" "$findings"
}

main() {
  local chosen=("$@") table=""
  [ ${#chosen[@]} -gt 0 ] || chosen=("${TARGETS[@]}")
  cargo +nightly fuzz build --target-dir "$BUILD/fuzz"
  local page="# Fuzzing

\`FUZZ_SECONDS=$SECONDS_EACH make fuzz\` at commit $(git rev-parse --short HEAD): $SECONDS_EACH s for each target,
libFuzzer with AddressSanitizer and debug assertions, one process on a machine with $(nproc) cores that others used too.
Coverage is of edges / features; a finding is a crash, a panic, a time-out or an allocation over $MALLOC_MB_MAX MiB.

| target | executions | coverage | memory at most | findings |
|---|---|---|---|---|"
  for target in "${chosen[@]}"; do
    table+=$(run "$target")$'\n'
  done
  printf '%s\n%s' "$page" "$table" | tee ${RESULTS:+"$RESULTS/fuzz.md"}
  [ -z "$(find fuzz/artifacts -type f)" ]
}

main "$@"
