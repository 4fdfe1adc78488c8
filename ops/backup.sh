#!/bin/sh
# Copies the AOF of a running Redis, as of one moment, without holding Redis up:
#
#     ops/backup.sh /run/spillway/redis.sock /backup/spillway-2026-11-21
#
# To be run as a user who may open the socket and read Redis' directory. REDISCLI_AUTH is the password, if there is one. docs/backup.md says what such
# a copy is good for, and what a restore does; stories/tests/restore.rs runs this very file.
set -eu

socket=${1:?the unix socket of Redis}
target=${2:?a directory that is not there yet}
[ ! -e "$target" ] || { echo "backup.sh: $target is there already" >&2; exit 1; }

redis() {
  redis-cli -s "$socket" --raw "$@"
}

setting() {
  answer=$(redis -e CONFIG GET "$1")
  printf '%s\n' "$answer" | tail -n 1
}

# How many rewrites have begun, and whether one is under way: in one answer, as of one moment.
rewrites() {
  redis INFO persistence | tr -d '\r' | grep -E '^aof_rewrite(s|_in_progress):'
}

data=$(setting dir)
directory=$(setting appenddirname)
links=$data/backup.$$
trap 'rm -rf "$links"' EXIT

# A rewrite replaces files one by one. Hard links are made in no time; when no rewrite was under way
# before, and none has begun since, they are of files that belong together.
while :; do
  before=$(rewrites)
  case $before in
    *aof_rewrite_in_progress:0*)
      rm -rf "$links"
      problem=$(cp -al "$data/$directory" "$links" 2>&1) || problem=${problem:-cp failed}
      if [ "$(rewrites)" = "$before" ]; then
        [ -z "$problem" ] || { echo "backup.sh: $problem" >&2; exit 1; }
        break
      fi
      ;;
  esac
  sleep 1
done
# The newest file grows while it is copied. What it ends with then may be half a command, which
# Redis cuts off when it loads it (aof-load-truncated).
cp -a "$links" "$target"
