#!/usr/bin/env bash
# Tests the packages in a separate Debian: apt installs them on a clean root, one file configures them,
# and they are killed, hung, restarted and upgraded under load, then purged without a trace. Every webhook
# that was sent must be in the backend and, exactly once, in the topic of a Kafka broker on this machine.
#
# debootstrap makes the root (kept in the build directory for the next run). It boots with its own systemd
# in systemd-nspawn, without a network. Needs root. The report goes to standard output.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=ops/machine.sh
. ops/machine.sh

readonly SECRET=hush-this-is-the-secret-of-the-package-test
readonly PACKAGES=(spillway spillway-kafka)
readonly UNITS=(spillway-redis spillway-receiver spillway-downstreamer spillway-kafka)
readonly SECURITY_MAX=1.5
readonly BACKEND=http://127.0.0.1:3000 RECEIVER=http://127.0.0.1:8080/webhooks
readonly KAFKA=127.0.0.1:9092
TARGET=$(realpath "${CARGO_TARGET_DIR:-target}")
packages="" logs="" backend="" broker="" load=""

show_logs() { [ -z "$leader" ] || inside journalctl --no-pager -n 60; }
get() { near curl -sf --max-time 5 "$@"; }

clean_up() {
  local id
  for id in $load $backend $broker; do kill "$id" 2>/dev/null || true; done
  end_root
  [ -z "$packages" ] || rm -rf "$packages"
  [ -z "$logs" ] || rm -rf "$logs"
}

# DEBS names a directory of packages that are already built.
build() {
  local debs=${DEBS:-$TARGET/debian} package first version
  packages=$(mktemp -d /var/tmp/spillway-debs-XXXXXX)
  for package in "${PACKAGES[@]}"; do
    [ -n "${DEBS:-}" ] || DEB_OUT=$debs ops/debian/build.sh "$package" >&2
    first=$(ls -t "$debs/$package"_*.deb | head -1)
    version=$(dpkg-deb -f "$first" Version)
    cp "$first" "$packages/$package-first.deb"
    # The second version differs only in its number: the test is about the upgrade.
    dpkg-deb -R "$first" "$packages/second"
    sed -i "s/^Version: .*/Version: $version+second/" "$packages/second/DEBIAN/control"
    dpkg-deb -Zgzip -b "$packages/second" "$packages/$package-second.deb" >&2
    rm -rf "$packages/second"
  done
}

# Installs both packages in the given version.
install() {
  inside apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install \
    $(printf "/root/%s-$1.deb " "${PACKAGES[@]}") >&2
}

check_units() {
  local unit score said
  said=$(inside sh -c 'systemd-analyze verify --man=no /usr/lib/systemd/system/spillway*' 2>&1) ||
    fail "systemd-analyze verify: $said"
  [ -z "$said" ] || fail "systemd-analyze verify: $said"
  say "- \`systemd-analyze verify\` of every unit: nothing to say"
  for unit in "${UNITS[@]}"; do
    score=$(inside systemd-analyze security "$unit" --no-pager | sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p')
    awk -v s="$score" -v m="$SECURITY_MAX" 'BEGIN { exit !(s != "" && s <= m) }' ||
      fail "systemd-analyze security $unit: $score"
    say "- \`systemd-analyze security $unit\`: $score"
  done
}

pid_of() { inside systemctl show -P MainPID "$1"; }
is_active() { inside systemctl is-active --quiet "$@"; }
is_ready() { get 127.0.0.1:9811/readyz && get 127.0.0.1:9812/readyz && get 127.0.0.1:9813/readyz; }
is_new() { is_active "$1" && [ "$(pid_of "$1")" != "$2" ] && [ "$(pid_of "$1")" != 0 ]; }
has_all() { [ "$(get "$BACKEND/count")" -ge "$1" ]; }
# Counts the records that a read_committed consumer finds in the topic.
records() {
  near ops/kafka.sh tool org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$KAFKA" \
    --topic shopify-webhooks --from-beginning --isolation-level read_committed --timeout-ms 8000 \
    2>/dev/null | wc -l
}

sent=0
send() {
  near ops/debian/traffic.py send "$RECEIVER" "$SECRET" "$1" >&2 || fail "webhooks were refused"
  sent=$((sent + $1))
  until_true "$sent webhooks are delivered" 60 has_all "$sent"
}

start_load() {
  # Not through near(): the signal must reach this process.
  nsenter --target "$leader" --net -- ops/debian/traffic.py load "$RECEIVER" "$SECRET" 16 \
    >"$logs/load" 2>&1 &
  load=$!
  until_true "the load flows" 30 has_all $((sent + 100))
}
end_load() {
  # nsenter became the sender itself.
  kill -TERM "$load"
  wait "$load" || fail "$1: $(cat "$logs/load")"
  load=""
  say "- $1: $(cat "$logs/load")"
  sent=$(sed -n 's/sent \([0-9]*\) .*/\1/p' "$logs/load" | awk -v s="$sent" '{ print $1 + s }')
  until_true "$sent webhooks are delivered" 60 has_all "$sent"
}

configure() {
  inside sh -c "cat >>/etc/spillway/spillway.env" <<EOT
SHOPIFY_CLIENT_SECRET=$SECRET
DOWNSTREAM_APP_URL=$BACKEND
REDIS_MAXMEMORY=256mb
KAFKA_URL=$KAFKA
EOT
  inside systemctl enable --quiet --now spillway.target spillway-kafka.service
  # The broker is a Java program that was started just now.
  until_true "the cell is ready" 120 is_ready
  is_active "${UNITS[@]}" spillway-receiver.socket || fail "not every unit is active"
}

kill_each() {
  local unit before
  for unit in "${UNITS[@]}"; do
    before=$(pid_of "$unit")
    inside sh -c "kill -9 $before"
    until_true "$unit is back" 60 is_new "$unit" "$before"
    until_true "the cell is ready" 60 is_ready
    send 50
    say "- \`kill -9\` of $unit: back as another process, 50 webhooks through"
  done
}

hang_each() {
  local unit before began
  for unit in spillway-receiver spillway-downstreamer spillway-kafka; do
    before=$(pid_of "$unit")
    inside sh -c "kill -STOP $before"
    began=$SECONDS
    until_true "the watchdog restarts $unit" 120 is_new "$unit" "$before"
    inside journalctl --no-pager -u "$unit" | grep 'Watchdog timeout' >/dev/null || fail "not by the watchdog"
    until_true "the cell is ready" 60 is_ready
    send 50
    say "- \`kill -STOP\` of $unit: restarted by the watchdog after $((SECONDS - began)) s, 50 webhooks through"
  done
}

rotate() {
  inside sh -c "echo $SECRET >/etc/spillway/client-secret
    sed -i 's|^SHOPIFY_CLIENT_SECRET=.*|SHOPIFY_CLIENT_SECRET_FILE=/etc/spillway/client-secret|' /etc/spillway/spillway.env
    systemctl restart spillway-receiver"
  start_load
  local before round
  before=$(pid_of spillway-receiver)
  for round in 1 2 3; do
    inside sh -c "echo other-secret-$round >>/etc/spillway/client-secret; systemctl reload spillway-receiver"
  done
  until_true "the secrets are read" 20 reads_secrets 4
  [ "$(pid_of spillway-receiver)" = "$before" ] || fail "a reload started another process"
  end_load "the secret's file changed three times, \`systemctl reload\` each time, under load"
}
reads_secrets() {
  inside journalctl --no-pager -u spillway-receiver | grep 'secrets read again' | tail -1 |
    grep -Eq "(.*[0-9a-f]{8}){$1}"
}

purge() {
  inside apt-get -qq -y purge "${PACKAGES[@]}" >&2
  local left
  left=$(find "$root" -xdev -mindepth 1 \( -path "$root/root" -o -path "$root/var/log" -o -path "$root/var/cache" \
    -o -path "$root/proc" \) -prune -o -iname '*spillway*' -print)
  left+=$(inside grep -h spillway /etc/passwd /etc/group /etc/shadow || true)
  left+=$(inside systemctl list-units --all --no-legend 'spillway*' || true)
  left+=$(inside systemctl list-unit-files --no-legend 'spillway*' || true)
  left+=$(inside find /run -name '*spillway*')
  [ -z "$left" ] || fail "the purge left: $left"
  say "- \`apt-get purge ${PACKAGES[*]}\`: no file, user, group or unit is left"
}

main() {
  trap clean_up EXIT
  build
  logs=$(mktemp -d /var/tmp/spillway-package-XXXXXX)
  make_root
  cp "$packages"/*.deb "$root/root/"
  boot "$logs/boot"
  say "# The Debian packages, from installation to purge"
  say
  say "By \`make package-test\`, in a Debian 12 made by debootstrap and booted by its own"
  say "$(inside systemctl --version | sed -n '1s/ (.*//p') in systemd-nspawn:"
  say
  install first
  ! is_active spillway.target && ! is_active spillway-kafka || fail "something was started by the installation"
  say "- installed by apt, with redis-server; nothing was started"
  check_units
  nsenter --target "$leader" --net -- ops/kafka.sh run "$logs/kafka" "${KAFKA#*:}" >"$logs/broker" 2>&1 &
  broker=$!
  configure
  nsenter --target "$leader" --net -- ops/debian/traffic.py backend 3000 &
  backend=$!
  until_true "the backend answers" 20 get "$BACKEND/count"
  send 200
  say "- configured by /etc/spillway/spillway.env, \`systemctl enable --now spillway.target\`: 200 webhooks through"
  kill_each
  hang_each
  start_load
  local round
  for round in 1 2 3; do
    inside systemctl restart spillway-receiver
    inside systemctl restart spillway-downstreamer spillway-kafka
  done
  end_load "three restarts of receiver and both consumers under load, a quarter of the connections used every 3 s"
  rotate
  start_load
  local before
  before=$(pid_of spillway-receiver)
  install second
  [ "$(inside dpkg-query -W -f '${Version}\n' "${PACKAGES[@]}" | grep -c '+second$')" = "${#PACKAGES[@]}" ] ||
    fail "it was not upgraded"
  is_new spillway-receiver "$before" || fail "the upgrade did not replace the receiver"
  until_true "the cell is ready" 60 is_ready
  end_load "upgraded to a second version by apt under load"
  local found
  found=$(records)
  [ "$found" = "$sent" ] || fail "$sent webhooks were sent, and $found records are in the topic"
  say "- all $sent webhooks are in the Kafka topic, each once"
  purge
}

main "$@"
