#!/usr/bin/env bash
# Tests compose.yaml with podman-compose: 100 webhooks a second through `up`, an upgrade to another image,
# `down` and `up` again. Every webhook that was answered 200 must be in the backend, and no process may
# have been killed.
#
# The images are that of dist/ and, as there may be no registry, a Debian with redis-server. The backend is
# a process of this machine. COMPOSE_NETWORK=host runs all containers in the network of this machine, where
# bridges cannot be made. Needs root and what `ops/deps.sh release` installs. The report goes to standard output.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=ops/container/lib.sh
. ops/container/lib.sh

readonly REDIS_TEST_IMAGE=localhost/spillway-test-redis:12
# With the network of this machine, the receiver has port 8080 of compose.yaml.
PORT=${PORT:-18080}
[ "${COMPOSE_NETWORK:-bridge}" != host ] || PORT=8080
readonly RECEIVER=http://127.0.0.1:$PORT/webhooks BACKEND=http://127.0.0.1:18081
readonly SERVICES=(redis receiver downstreamer archiver forget)

# --parallel 1: else podman-compose stops all containers at once, and not Redis last.
compose() {
  (cd "$work/cell" && "$TARGET/tools/compose/bin/podman-compose" --project-name "$NAME" --in-pod false \
    --parallel 1 --profile archive --file compose.yaml ${OVERRIDE:+--file "$OVERRIDE"} "$@") >>"$work/compose.log" 2>&1
}
container_of() {
  podman ps --all --quiet --filter "label=io.podman.compose.project=$NAME" \
    --filter "label=com.docker.compose.service=$1" | head -1
}
show_logs() {
  local service
  tail -40 "$work/compose.log"
  for service in "${SERVICES[@]}"; do
    echo "--- $service"
    podman logs --tail 40 "$(container_of "$service")" 2>&1
  done
}
remove_all() {
  # It needs the settings of prepare().
  [ -z "${SPILLWAY_IMAGE:-}" ] || compose down --volumes || true
  podman untag "$IMAGE" "$IMAGE-second" 2>/dev/null || true
  clean_up
}

prepare() {
  local host=host.containers.internal
  mkdir -p "$work/cell/ops"
  mkdir -m 700 "$work/cell/secrets"
  cp compose.yaml "$work/cell/"
  cp ops/redis.conf ops/redis-start "$work/cell/ops/"
  echo "$SECRET" >"$work/cell/secrets/shopify_client_secret"
  if [ "${COMPOSE_NETWORK:-bridge}" = host ]; then
    host=127.0.0.1
    OVERRIDE=host.yaml
    printf 'services:\n' >"$work/cell/$OVERRIDE"
    printf '  %s: {network_mode: host}\n' "${SERVICES[@]}" >>"$work/cell/$OVERRIDE"
  fi
  export SPILLWAY_IMAGE=$IMAGE REDIS_IMAGE=$REDIS_TEST_IMAGE REDIS_MAXMEMORY=256mb SPILLWAY_PORT=$PORT
  export DOWNSTREAM_APP_URL=http://${BACKEND_HOST:-$host}:${BACKEND##*:}
}

stored() { "$TRAFFIC" send "$RECEIVER" "$SECRET" 1; }
archived() { podman exec "$(container_of archiver)" spillway archive list -o json | grep -q '"object"'; }
runs_image() { [ "$(podman inspect --format '{{.ImageName}}' "$(container_of "$1")")" = "$2" ]; }
delivers() { [ "$(get "$BACKEND/count")" -gt "$1" ]; }

# What was stopped by `compose stop` must have ended by itself.
check_orderly() {
  local service code
  for service in "${SERVICES[@]}"; do
    code=$(podman inspect --format '{{.State.ExitCode}}' "$(container_of "$service")")
    [ "$code" = 0 ] || fail "$service ended with $code"
  done
}

main() {
  trap remove_all EXIT
  set_up_podman
  load_image
  base_image "$REDIS_TEST_IMAGE" redis-server
  podman tag "$IMAGE" "$IMAGE-second"
  prepare
  start backend.log "$TRAFFIC" backend "${BACKEND##*:}" 0.0.0.0
  until_true "the backend answers" 20 get "$BACKEND/count"
  say "# compose.yaml"
  say
  say "By \`make compose-test\`: podman-compose $PODMAN_COMPOSE, 100 webhooks a second."
  say
  local began=$SECONDS
  compose up --detach || fail "up"
  until_true "a webhook is answered 200" 60 stored
  until_true "it is delivered" 60 delivers 0
  say "- \`up\`: the first webhook is delivered after $((SECONDS - began)) s"
  # An object is written after ARCHIVE_MAX_DELAY, a minute.
  until_true "it is archived" 120 archived

  start ledger.log "$TRAFFIC" ledger "$RECEIVER" "$SECRET" 100 "$BACKEND"
  local ledger=$started count service
  sleep 5
  began=$SECONDS
  export SPILLWAY_IMAGE=$IMAGE-second
  compose up --detach || fail "up with another image"
  for service in receiver downstreamer archiver forget; do
    until_true "$service has the new image" 60 runs_image "$service" "$SPILLWAY_IMAGE"
  done
  until_true "a webhook is answered 200" 60 stored
  count=$(get "$BACKEND/count")
  until_true "webhooks are delivered" 60 delivers "$count"
  say "- an upgrade, \`up\` with another image: webhooks are taken and delivered again after $((SECONDS - began)) s"

  sleep 5
  began=$SECONDS
  compose stop || fail "stop"
  check_orderly
  compose down || fail "down"
  say "- \`stop\` and \`down\`: $((SECONDS - began)) s, and every process ended with 0"
  compose up --detach || fail "up again"
  until_true "a webhook is answered 200" 60 stored
  sleep 5
  stop "$ledger" || fail "webhooks were lost: $(cat "$work/ledger.log")"
  say "- through all of it: $(cat "$work/ledger.log")"
  podman exec "$(container_of archiver)" spillway archive verify >&2 || fail "the archive is not whole"
  say "- \`spillway archive verify\` finds no problem"
}

# shellcheck source=ops/versions.sh
. ops/versions.sh
main "$@"
