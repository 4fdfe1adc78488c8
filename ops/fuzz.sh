#!/usr/bin/env bash
# Fuzzes every target of fuzz/ for FUZZ_SECONDS each (default 600), or those named as arguments.
#
# What is found lies in fuzz/artifacts, and the exit is 1. What reached more code is kept beside the
# build; FUZZ_KEEP=1 replaces what the fuzzer made of fuzz/corpus by the smallest set that reaches as many
# edges. Inputs with names of their own stay. With
# RESULTS= a table is written there.
set -euo pipefail
# A step that fails inside $(…) ends it, too.
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

# Names that the fuzzer gives what it finds, and that we give it from the corpus.
readonly FOUND='found-[0-9]+|[0-9a-f]{40}'
readonly TARGETS=(archive http pack replies retry_after round_trip settings times)
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

# Writes the inputs of fuzz/corpus/TARGET.txt.zst into a directory, a file each. Those without a name of
# their own get the number of their line.
unpack() {
  local number=0 name bytes
  rm -rf "$2" && mkdir -p "$2"
  zstd -dcq "fuzz/corpus/$1.txt.zst" >"$2.txt"
  while read -r name bytes; do
    number=$((number + 1))
    [ -n "$bytes" ] || { bytes=$name && name=found-$number; }
    basenc --base16 -d <<<"$bytes" >"$2/$name"
  done <"$2.txt"
  rm "$2.txt"
}

# The inverse: one line for each file of a directory, without the names that the fuzzer gave.
pack() {
  local file name
  for file in "$1"/*; do
    [ -e "$file" ] || continue
    name=$(basename "$file")
    [[ $name =~ ^($FOUND)$ ]] || printf '%s ' "$name"
    basenc --base16 -w 0 "$file"
    echo
  done | LC_ALL=C sort
}

# Keeps the inputs with names of their own, and of all others the smallest set that reaches as many edges.
minimise() {
  local target=$1 seeds=$2 corpus=$3 log=$4 smallest
  smallest=$(mktemp -d)
  find "$seeds" -type f -regextype posix-extended -not -regex ".*/($FOUND)" -exec cp -t "$smallest" {} +
  fuzz "$target" "$smallest" "$seeds" "$corpus" -- -merge=1 -use_counters=0 -max_len=2048 >>"$log" 2>&1
  pack "$smallest" >"$smallest.txt"
  # An empty set means that the merge did not work.
  [ -s "$smallest.txt" ] || return 1
  zstd -qf -19 "$smallest.txt" -o "fuzz/corpus/$target.txt.zst"
  rm -rf "$smallest" "$smallest.txt"
}

# One target; a row of the table.
run() {
  local target=$1 corpus=$BUILD/fuzz-corpus/$1 seeds=$BUILD/fuzz-seeds/$1 log=$BUILD/fuzz-$1.log
  local findings coverage
  mkdir -p "$corpus" "fuzz/artifacts/$target"
  unpack "$target" "$seeds"
  local outcome=0
  fuzz "$target" "$corpus" "$seeds" -- -max_total_time="$SECONDS_EACH" \
    -max_len=$INPUT_BYTES_MAX -malloc_limit_mb=$MALLOC_MB_MAX -timeout=20 -print_final_stats=1 \
    >"$log" 2>&1 || outcome=$?
  findings=$(find "fuzz/artifacts/$target" -type f | wc -l)
  coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1 | sed 's/cov: //; s/ ft: / \/ /')
  if [ "${FUZZ_KEEP:-0}" = 1 ]; then
    minimise "$target" "$seeds" "$corpus" "$log"
  fi
  [ "$outcome" = 0 ] || [ "$findings" -gt 0 ] || { tail -5 "$log" >&2; return 1; }
  printf '| %s | %s | %s | %s | %s |\n' "$target" "$(stat_of "$log" number_of_executed_units)" \
    "${coverage:-?}" "$(stat_of "$log" peak_rss_mb) MiB" "$findings"
}

main() {
  local chosen=("$@") table=""
  [ ${#chosen[@]} -gt 0 ] || chosen=("${TARGETS[@]}")
  # The versions that are shipped.
  cp Cargo.lock fuzz/Cargo.lock
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
