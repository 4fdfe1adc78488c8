#!/bin/sh
# Copies the AOF of a running Redis, as of one moment, without holding Redis up:
#
#     ops/backup.sh /run/spillway/redis.sock /backup/spillway-2026-11-21
#
# To be run as a user who may open the socket and read Redis' directory. docs/backup.md says what such
# a copy is good for, and what a restore does; stories/tests/restore.rs runs this very file.
set -eu

socket=${1:?the unix socket of Redis}
target=${2:?a directory that is not there yet}
[ ! -e "$target" ] || { echo "backup.sh: $target is there already" >&2; exit 1; }

redis() {
  redis-cli -s "$socket" --raw "$@"
}

persistence() {
  redis INFO persistence | tr -d '\r' | sed -n "s/^$1://p"
}

data=$(redis CONFIG GET dir | tail -n 1)
files=$data/$(redis CONFIG GET appenddirname | tail -n 1)
links=$data/backup.$$
trap 'rm -rf "$links"' EXIT

# A rewrite replaces files one by one. Hard links are made in no time, and when no rewrite was under
# way before and after, they are of files that belong together.
while :; do
  rewrites=$(persistence aof_rewrites)
  rm -rf "$links"
  cp -al "$files" "$links"
  if [ "$(persistence aof_rewrite_in_progress)$(persistence aof_rewrite_scheduled)" = 00 ] &&
    [ "$(persistence aof_rewrites)" = "$rewrites" ]; then
    break
  fi
  sleep 1
done
# The newest file grows while it is copied. What it ends with then may be half a command, which
# Redis cuts off when it loads it (aof-load-truncated).
cp -a "$links" "$target"
