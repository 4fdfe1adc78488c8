# Functions of the tests of images and releases. This file is sourced, at the root of the repository.
# shellcheck shell=bash
# shellcheck source=ops/machine.sh
. ops/machine.sh

TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
ARCH=$(dpkg --print-architecture)
DIST=$(realpath -m "${DIST:-dist}")
readonly SECRET=hush-this-is-the-secret-of-a-test
readonly TRAFFIC=$PWD/ops/debian/traffic.py
# What a container reads, its user must be able to read.
umask 022
# Names of containers and images, and the directory of everything else.
NAME=spillway-test-$$
work=$(mktemp -d /var/tmp/spillway-test-XXXXXX)
jobs_started=()

get() { curl -sf --max-time 5 "$@"; }

# start LOG COMMAND…: in the background, until the test ends. Sets started to its id.
start() {
  local log=$work/$1
  shift
  "$@" >"$log" 2>&1 </dev/null &
  started=$!
  jobs_started+=("$started")
}

# stop ID: ends what start() started. Returns how it ended.
stop() {
  local id left=()
  # Forgotten first: another process may get this id.
  for id in "${jobs_started[@]}"; do
    [ "$id" = "$1" ] || left+=("$id")
  done
  jobs_started=("${left[@]}")
  kill -TERM "$1" 2>/dev/null || true
  wait "$1"
}

# For a trap. Removes what this test made, and nothing else.
clean_up() {
  # What was started last ends first: a server may wait for ever for one that it needs.
  while [ "${#jobs_started[@]}" != 0 ]; do
    stop "${jobs_started[-1]}" 2>/dev/null || true
  done
  podman ps --all --quiet --filter "name=^$NAME" 2>/dev/null |
    xargs --no-run-if-empty --max-args 1 podman rm --force --depend --ignore --time 0 >/dev/null || true
  # Without a name, it would take all names of the image, also those of others.
  podman untag "$IMAGE" "$IMAGE" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}

# least NUMBER LIMIT: the smaller of both. A limit may be "unlimited".
least() { if [ "$2" = unlimited ] || [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi; }

# podman as a machine without systemd, a network or a registry can run it.
set_up_podman() {
  local files processes
  # podman asks for these limits itself, and fails where root may not raise its own (no CAP_SYS_RESOURCE).
  files=$(least 1048576 "$(ulimit -Hn)")
  processes=$(least "$(cat /proc/sys/kernel/pid_max)" "$(ulimit -Hu)")
  # By itself, podman 4 would take CNI for a network as soon as buildah has left an image.
  cat >"$work/containers.conf" <<CONF
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
# crun refuses a machine with both versions of cgroups.
runtime = "runc"
[network]
network_backend = "netavark"
CONF
  # One that is set already is the reader's own.
  export CONTAINERS_CONF=${CONTAINERS_CONF:-$work/containers.conf}
  # Without systemd there is no timer for a HEALTHCHECK: this test asks for each check.
  [ -d /run/systemd/system ] || export DISABLE_HC_SYSTEMD=true
}

# base_image NAME PACKAGE…: a Debian with these packages, unless there is an image of that name.
base_image() {
  local name=$1 root=$work/base
  shift
  ! podman image exists "$name" || return 0
  debootstrap --variant=minbase ${1:+--include="$(IFS=, && echo "$*")"} bookworm "$root" >&2
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar --one-file-system -C "$root" -c . | podman import --quiet - "$name" >&2
  rm -rf --one-file-system "$root"
}

# Loads the image of dist/ as $IMAGE.
IMAGE=localhost/spillway:$NAME
load_image() {
  local archive=$DIST/spillway-$VERSION-image-$ARCH.tar loaded
  [ -f "$archive" ] || fail "$archive is missing; make it with: ops/release.sh image"
  loaded=$(podman load --quiet --input "$archive" | sed -n 's/^Loaded image[^:]*: //p' | tail -1)
  podman tag "$loaded" "$IMAGE"
}

# run_spillway SUFFIX ARGUMENTS… -- COMMAND…: a container of the image, as an orchestrator should run it.
run_spillway() {
  local name=$NAME-$1 arguments=()
  shift
  while [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  shift
  podman run --detach --name "$name" --network host --read-only --read-only-tmpfs=false --cap-drop all \
    --security-opt no-new-privileges "${arguments[@]}" "$IMAGE" "$@" >/dev/null
}
