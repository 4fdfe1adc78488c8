# Functions of tests that drive a system from outside: waiting, and a Debian of its own. This file is
# sourced. The script that sources it may define show_logs, which fail() calls.
# shellcheck shell=bash

# A Debian that boot() has started: its directory, its first process, and systemd-nspawn's.
root="" leader="" nspawn=""

say() { echo "$*"; }
fail() {
  echo "FAILED: $*" >&2
  ! declare -F show_logs >/dev/null || show_logs >&2 || true
  exit 1
}

# until_true WHAT SECONDS COMMAND…
until_true() {
  local what=$1 end=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || fail "not in time: $what"
    sleep 0.2
  done
}

# A Debian that was never booted, in $root. It has no network, so what our packages depend on is
# downloaded now and not installed. Kept in the build directory for the next test.
make_root() {
  local clean=$TARGET/debian-root
  if [ ! -e "$clean/made" ]; then
    rm -rf --one-file-system "$clean"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates bookworm "$clean" >&2
    chroot "$clean" apt-get -qq update >&2
    chroot "$clean" apt-get -qq -y --download-only --no-install-recommends install redis-server libcurl4 >&2
    touch "$clean/made"
  fi
  root=$(mktemp -d /var/tmp/spillway-root-XXXXXX)
  cp -a "$clean/." "$root"
}

# boot LOG: starts it, with its own systemd.
boot() {
  systemd-nspawn -q --register=no --keep-unit --private-network -D "$root" --boot \
    systemd.unified_cgroup_hierarchy=0 >"$1" 2>&1 </dev/null &
  nspawn=$!
  until_true "the container is booted" 180 is_booted
}
is_booted() {
  # Looked up each time: the first child of nspawn only starts the container, and ends.
  leader=$(pgrep -P "$nspawn") || return 1
  # It fails for `degraded`.
  case $(inside systemctl is-system-running || true) in running | degraded) ;; *) return 1 ;; esac
}

# Runs a program of it.
inside() { nsenter --target "$leader" --mount --uts --ipc --net --pid --cgroup --root --wdns=/ -- "$@"; }
# Runs a program of this machine in its network.
near() { nsenter --target "$leader" --net -- "$@"; }

# Ends and removes it.
end_root() {
  if [ -n "$nspawn" ]; then
    kill -TERM "$nspawn" 2>/dev/null || true
    wait "$nspawn" 2>/dev/null || true
  fi
  [ -z "$root" ] || rm -rf --one-file-system "$root"
  root="" leader="" nspawn=""
}
