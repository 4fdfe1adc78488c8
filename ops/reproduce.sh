#!/usr/bin/env bash
# Shows that a release can be built again: builds the commit that is checked out twice, in two different
# directories, and compares every file of the two dist/ byte for byte.
#
# What differs is named, and kept for a look. Needs what `ops/deps.sh release` installs, 6 GB of disk, and
# twice the time of a release.
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
# Directories of different lengths: a path that is left over moves what comes after it.
work=$(mktemp -d /var/tmp/spillway-reproduce-XXXXXX)
readonly builds=("$work/first" "$work/the-second/in/a/longer/path")
unset APT_KEY DIST CARGO_TARGET_DIR

for build in "${builds[@]}"; do
  echo "# building in $build" >&2
  git clone --quiet . "$build"
  git -C "$build" checkout --quiet "$(git rev-parse HEAD)"
  mkdir "$build/target"
  ln -s "$TOOLS" "$build/target/tools"
  # Another time zone, umask and language, as another machine has.
  if [ "$build" = "${builds[0]}" ]; then
    (cd "$build" && TZ=Asia/Tokyo ops/release.sh >&2)
  else
    (cd "$build" && umask 027 && LANG=C.UTF-8 ops/release.sh >&2)
  fi
  # Only what is compared is kept.
  rm -rf --one-file-system "$build/target"
done

listing() { (cd "$1/dist" && find . -type f | sort); }
if ! diff <(listing "${builds[0]}") <(listing "${builds[1]}") >&2; then
  echo "FAILED: the two builds have different files; they are in $work" >&2
  exit 1
fi
count=0 different=0
while read -r file; do
  count=$((count + 1))
  if ! cmp "${builds[0]}/dist/$file" "${builds[1]}/dist/$file" >&2; then
    different=$((different + 1))
    echo "- differs: \`${file#./}\`"
  fi
done < <(listing "${builds[0]}")
if [ "$different" != 0 ]; then
  echo "FAILED: $different of $count files differ; both builds are in $work" >&2
  exit 1
fi
rm -rf --one-file-system "$work"
echo "$count files were built twice, in two directories, and are the same byte for byte."
