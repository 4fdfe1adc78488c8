#!/usr/bin/env bash
# Tests the image of dist/: its size, and a receiver and a downstreamer of it, without root and with a
# read-only file system, on a Redis of this machine. They are killed, and get a new secret, under load.
# Every webhook that was answered 200 must be in the backend.
#
# Needs root and what `ops/deps.sh release` installs. The report goes to standard output.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=ops/container/lib.sh
. ops/container/lib.sh

readonly SIZE_MAX=$((60 * 1000 * 1000))
readonly PORT=${PORT:-18080}
readonly RECEIVER=http://127.0.0.1:$PORT/webhooks BACKEND=http://127.0.0.1:$((PORT + 1))
readonly RECEIVER_ADMIN=127.0.0.1:$((PORT + 2)) DOWNSTREAMER_ADMIN=127.0.0.1:$((PORT + 3))
readonly NEW_SECRET=the-secret-after-the-rotation

show_logs() {
  local name
  for name in receiver downstreamer; do
    echo "--- $name"
    podman logs --tail 40 "$NAME-$name" 2>&1
  done
}

check_size() {
  local size
  size=$(stat -c %s "$DIST/spillway-$VERSION-image-$ARCH.tar")
  [ "$size" -le "$SIZE_MAX" ] || fail "the image has $size bytes compressed, more than $SIZE_MAX"
  say "- the image has $((size / 1000000)) MB compressed, of at most $((SIZE_MAX / 1000000)) MB"
}

start_redis() {
  mkdir -m 755 "$work/redis" "$work/run"
  chmod 755 "$work"
  start redis.log ops/redis-start ops/redis.conf "$work/redis" --unixsocket "$work/run/redis.sock" \
    --unixsocketperm 777 --maxmemory 256mb
  until_true "Redis answers" 20 redis-cli -e -s "$work/run/redis.sock" ping
}

start_cell() {
  # A directory, in which a file is replaced as Kubernetes does it.
  mkdir -m 755 "$work/secret"
  echo "$SECRET" >"$work/secret/client"
  run_spillway receiver --volume "$work/run:/run/spillway" --volume "$work/secret:/etc/spillway/secret:ro" \
    --env "LISTEN=127.0.0.1:$PORT" --env "ADMIN_LISTEN=$RECEIVER_ADMIN" \
    --env SHOPIFY_CLIENT_SECRET_FILE=/etc/spillway/secret/client -- request-receiver
  run_spillway downstreamer --volume "$work/run:/run/spillway" \
    --env "ADMIN_LISTEN=$DOWNSTREAMER_ADMIN" --env "DOWNSTREAM_APP_URL=$BACKEND" -- downstreamer
  until_true "the receiver is ready" 30 get "$RECEIVER_ADMIN/readyz"
  until_true "the downstreamer is ready" 30 get "$DOWNSTREAMER_ADMIN/readyz"
}

check_sandbox() {
  local name pid
  for name in receiver downstreamer; do
    pid=$(podman inspect --format '{{.State.Pid}}' "$NAME-$name")
    grep -q '^Uid:\s*65532\s' "/proc/$pid/status" || fail "the $name runs as $(grep ^Uid: "/proc/$pid/status")"
    grep -q '^CapEff:\s*0*$' "/proc/$pid/status" || fail "the $name has capabilities"
    grep -q '^NoNewPrivs:\s*1$' "/proc/$pid/status" || fail "the $name can get privileges"
    awk '$5 == "/" { ro = $6 ~ /(^|,)ro(,|$)/ } END { exit !ro }' "/proc/$pid/mountinfo" ||
      fail "the root of the $name is writable"
  done
  ! podman run --rm --network none "$IMAGE" sh -c true 2>/dev/null || fail "there is a shell in the image"
  say "- user 65532, no capabilities, a read-only root, no shell"
}

check_health() {
  local name
  for name in receiver downstreamer; do
    until_true "the $name is healthy" 30 podman healthcheck run "$NAME-$name"
  done
  # A process that hangs is not.
  podman kill --signal STOP "$NAME-downstreamer" >/dev/null
  until_true "a stopped downstreamer is unhealthy" 30 is_unhealthy "$NAME-downstreamer"
  podman kill --signal CONT "$NAME-downstreamer" >/dev/null
  until_true "it is healthy again" 30 podman healthcheck run "$NAME-downstreamer"
  say "- HEALTHCHECK: healthy, and unhealthy while the process is stopped"
}
# 1 is unhealthy; 125 is a fault of podman.
is_unhealthy() {
  local code=0
  podman healthcheck run "$1" || code=$?
  [ "$code" = 1 ]
}

kill_each() {
  local name
  for name in receiver downstreamer receiver; do
    podman kill --signal KILL "$NAME-$name" >/dev/null
    until_true "the $name is dead" 20 is_dead "$NAME-$name"
    podman start "$NAME-$name" >/dev/null
    until_true "the cell is ready" 60 is_ready
    sleep 2
  done
}
is_dead() { [ "$(podman inspect --format '{{.State.Running}}' "$1")" = false ]; }
is_ready() { get "$RECEIVER_ADMIN/readyz" && get "$DOWNSTREAMER_ADMIN/readyz"; }

rotate() {
  local before began
  before=$(podman inspect --format '{{.State.Pid}}' "$NAME-receiver")
  ! "$TRAFFIC" send "$RECEIVER" "$NEW_SECRET" 1 >/dev/null || fail "a secret was accepted before it was there"
  printf '%s\n%s\n' "$SECRET" "$NEW_SECRET" >"$work/secret/new"
  mv "$work/secret/new" "$work/secret/client"
  began=$SECONDS
  until_true "the new secret is accepted" 30 "$TRAFFIC" send "$RECEIVER" "$NEW_SECRET" 1
  [ "$(podman inspect --format '{{.State.Pid}}' "$NAME-receiver")" = "$before" ] || fail "the receiver was restarted"
  say "- a file with a second secret: accepted after $((SECONDS - began)) s, by the same process"
}

main() {
  trap clean_up EXIT
  set_up_podman
  say "# The image"
  say
  say "By \`make image-test\`: podman $(podman --version | grep -o '[0-9.]*$') with runc, the image of $VERSION."
  say
  check_size
  load_image
  start_redis
  start backend.log "$TRAFFIC" backend "${BACKEND##*:}"
  until_true "the backend answers" 20 get "$BACKEND/count"
  start_cell
  check_sandbox
  check_health
  start ledger.log "$TRAFFIC" ledger "$RECEIVER" "$SECRET" 100 "$BACKEND"
  local ledger=$started
  sleep 3
  kill_each
  rotate
  sleep 3
  stop "$ledger" || fail "webhooks were lost: $(cat "$work/ledger.log")"
  say "- receiver and downstreamer killed (\`kill -9\`) and started under load: $(cat "$work/ledger.log")"
  local name
  for name in receiver downstreamer; do
    podman stop --time 60 "$NAME-$name" >/dev/null
    [ "$(podman inspect --format '{{.State.ExitCode}}' "$NAME-$name")" = 0 ] || fail "the $name did not end orderly"
  done
  say "- \`podman stop\`: both ended with 0"
}

main "$@"
