#!/usr/bin/env bash
# Tests a release as a stranger would: on clean Debian roots without Rust, from nothing except dist/, by the
# package from a signed apt repository, by the tarball with the commands of its own docs/install.md, and by
# the image. Each must deliver README's sample within two minutes. The report, a table, goes to standard output.
#
# debootstrap makes the root (kept in the build directory for the next run). It has no network: what the
# packages depend on is downloaded before. Needs root and what `ops/deps.sh release` installs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=ops/container/lib.sh
. ops/container/lib.sh

readonly LIMIT=120
readonly BACKEND_PORT=3000
rows=()

show_logs() {
  [ -z "$leader" ] || inside journalctl --no-pager -n 60
  tail -n 40 "$work"/*.log
}
end_all() {
  end_root
  clean_up
}

# A machine without anything to build with.
make_clean_root() {
  make_root
  [ ! -e "$root/usr/bin/cargo" ] && [ ! -e "$root/usr/bin/cc" ] || fail "the root is not clean"
}

# in_time BEGAN WAY: a row of the table.
in_time() {
  local took=$((SECONDS - $1))
  rows+=("| $2 | $took s |")
  [ "$took" -le "$LIMIT" ] || fail "$2: $took s, more than $LIMIT"
}

# The repository of dist/, signed with a key of this test.
make_repository() {
  export GNUPGHOME=$work/gnupg
  mkdir -m 700 "$GNUPGHOME"
  gpg --batch --quiet --passphrase '' --quick-generate-key 'Spillway test <spillway@localhost>' ed25519 sign 1d
  APT_KEY=$(gpg --batch --with-colons --list-keys | sed -n 's/^fpr:*\([0-9A-F]*\):.*/\1/p' | head -1)
  export APT_KEY
  mkdir -p "$work/dist"
  ls "$DIST"/debian/*.deb >/dev/null || fail "there is no package in $DIST; make it with: ops/release.sh packages"
  cp -r "$DIST/debian" "$work/dist/"
  DIST=$work/dist ops/release.sh repository
  gpgconf --kill all
}

# From that repository alone: there is no network. What apt has read before is forgotten.
update() {
  inside sh -c 'rm -rf /var/lib/apt/lists/_srv_spillway*'
  inside apt-get -qq -o Dir::Etc::sourcelist=sources.list.d/spillway.list -o Dir::Etc::sourceparts=- \
    -o APT::Get::List-Cleanup=false -o APT::Update::Error-Mode=any update
}

by_package() {
  make_clean_root
  cp -r "$work/dist/apt" "$root/srv/spillway"
  boot "$work/boot.log"
  start backend.log nsenter --target "$leader" --net -- "$TRAFFIC" backend "$BACKEND_PORT"
  local began=$SECONDS
  inside sh -ec 'mkdir -p /etc/apt/keyrings
    cp /srv/spillway/spillway.gpg /etc/apt/keyrings/
    echo "deb [signed-by=/etc/apt/keyrings/spillway.gpg] file:/srv/spillway stable main" \
      >/etc/apt/sources.list.d/spillway.list'
  update >&2
  inside apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install spillway >&2
  run_services
  in_time "$began" "package, from a signed apt repository"
  local command
  for command in request-receiver downstreamer archiver spillway; do
    compgen -G "$root/usr/share/man/man[18]/$command.[18].gz" >/dev/null || fail "$command has no man page"
  done
  # What somebody changed on the way is refused.
  local stable=$root/srv/spillway/dists/stable
  cp -r "$stable" "$work/stable"
  sed -i 's/^Version: /&9/' "$stable/main/binary-$ARCH/Packages"
  rm "$stable/main/binary-$ARCH/Packages.gz"
  ! update >/dev/null 2>&1 || fail "apt accepts a list that is not the one that was signed"
  rm -r "$stable"
  cp -r "$work/stable" "$stable"
  update >&2 || fail "apt refuses the repository as it was"
  rm "$stable/InRelease" "$stable/Release.gpg"
  ! update >/dev/null 2>&1 || fail "apt accepts a repository without a signature"
  end_root
}
has_sample() { [ "$(near curl -sf --max-time 5 "127.0.0.1:$BACKEND_PORT/count")" -ge 1 ]; }

# What is to be set, a start of everything that is installed, and the sample.
run_services() {
  inside sh -ec "echo '$SECRET' >/etc/spillway/client-secret
    printf '%s\n' SHOPIFY_CLIENT_SECRET_FILE=/etc/spillway/client-secret REDIS_MAXMEMORY=256mb \
      DOWNSTREAM_APP_URL=http://127.0.0.1:$BACKEND_PORT >>/etc/spillway/spillway.env"
  inside systemctl enable --quiet --now spillway.target
  until_true "the receiver is ready" "$LIMIT" near curl -sf --max-time 5 127.0.0.1:9811/readyz
  inside spillway send --env-file /etc/spillway/spillway.env >&2
  until_true "the sample is delivered" "$LIMIT" has_sample
}

# `spillway dev` is what README's quick start runs: a cell, a demo backend, and the sample.
by_tarball() {
  local name=spillway-$VERSION-linux-$ARCH
  [ -f "$DIST/$name.tar.gz" ] || fail "$DIST/$name.tar.gz is missing; make it with: ops/release.sh tarball"
  make_clean_root
  cp "$DIST/$name.tar.gz" "$root/root/"
  (cd "$DIST" && sha256sum --quiet --ignore-missing --check SHA256SUMS >&2) || fail "SHA256SUMS is not that of dist/"
  # Nothing of the system runs in there: Debian's own Redis is not to be started.
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  local began=$SECONDS
  systemd-nspawn -q --register=no --keep-unit --private-network -D "$root" --as-pid2 /bin/sh -ec "
    cd /root
    apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install redis-server libcurl4 >&2
    tar -xf $name.tar.gz
    cd $name
    bin/kafka_producer --version >&2
    bin/spillway dev --oneshot >&2" >"$work/tarball.log" 2>&1 </dev/null ||
    fail "the tarball's cell"
  grep -q 'The signed sample (request.json) was answered 200' "$work/tarball.log" || fail "no sample was delivered"
  in_time "$began" "tarball, with Debian's redis-server"
  as_services "/root/$name"
  end_root
}

# commands_of PAGE HEADING: the blocks of a section that are marked `sh`.
commands_of() {
  awk -v heading="## $2" '
    /^## / { is_section = ($0 == heading) }
    /^```/ { is_code = ($0 == "```sh"); next }
    is_section && is_code
  ' "$1"
}

# as_services DIRECTORY: systemd runs what is installed from an unpacked tarball by the commands of its page.
as_services() {
  local commands began=$SECONDS file
  commands=$(commands_of "$root$1/docs/install.md" "The tarball")
  [ "$(wc -l <<<"$commands")" -gt 10 ] || fail "docs/install.md has no commands for the tarball"
  boot "$work/tarball-boot.log"
  start tarball-backend.log nsenter --target "$leader" --net -- "$TRAFFIC" backend "$BACKEND_PORT"
  inside sh -ec "cd $1
    $commands" >&2 || fail "the commands of docs/install.md"
  run_services
  in_time "$began" "tarball, as systemd's services, by the commands of docs/install.md"
  for file in "$root$1"/man/*.[18]; do
    [ -e "$root/usr/local/share/man/man${file##*.}/${file##*/}" ] || fail "${file##*/} is not installed"
  done
  # An upgrade repeats the second block while everything runs.
  inside sh -ec "cd $1
    $(sed -n '/^install -m 755 bin/,$p' <<<"$commands")
    systemctl try-restart 'spillway-downstreamer*' 'spillway-kafka*' spillway-archiver spillway-console
    systemctl try-restart spillway-receiver" >&2
  until_true "the receiver is ready again" "$LIMIT" near curl -sf --max-time 5 127.0.0.1:9811/readyz
  [ -z "$(inside systemctl list-units --failed --no-legend 'spillway*')" ] || fail "a unit of the tarball failed"
}

by_image() {
  set_up_podman
  base_image localhost/spillway-test-redis:12 redis-server
  local began=$SECONDS port=18080
  load_image
  mkdir "$work/run"
  chmod 1777 "$work/run"
  podman run --detach --name "$NAME-redis" --network host --user 65532:65532 --tmpfs /data:mode=1777 \
    --volume "$PWD/ops/redis.conf:/etc/redis.conf:ro" --volume "$PWD/ops/redis-start:/etc/redis-start:ro" \
    --volume "$work/run:/run/spillway" localhost/spillway-test-redis:12 sh /etc/redis-start /etc/redis.conf /data \
    --unixsocket /run/spillway/redis.sock --maxmemory 256mb >/dev/null
  start image-backend.log "$TRAFFIC" backend $((port + 1))
  run_spillway receiver --volume "$work/run:/run/spillway" --env "SHOPIFY_CLIENT_SECRET=$SECRET" \
    --env "LISTEN=127.0.0.1:$port" --env "ADMIN_LISTEN=127.0.0.1:$((port + 2))" -- request-receiver
  run_spillway downstreamer --volume "$work/run:/run/spillway" \
    --env "DOWNSTREAM_APP_URL=http://127.0.0.1:$((port + 1))" --env "ADMIN_LISTEN=127.0.0.1:$((port + 3))" \
    -- downstreamer
  until_true "the receiver is ready" "$LIMIT" get "127.0.0.1:$((port + 2))/readyz"
  podman exec "$NAME-receiver" spillway send --url "http://127.0.0.1:$port/webhooks" >&2
  until_true "the sample is delivered" "$LIMIT" image_has_sample $((port + 1))
  in_time "$began" "image, with Redis in a container"
}
image_has_sample() { [ "$(get "127.0.0.1:$1/count")" -ge 1 ]; }

main() {
  trap end_all EXIT
  make_repository >&2
  by_package
  by_tarball
  by_image
  say "# A release on clean machines"
  say
  say "By \`make release-test\`: from $(basename "$DIST")/ of $VERSION to the delivered sample, on a Debian 12 without Rust and without a network."
  say
  say "| way | time to the delivered sample |"
  say "|---|---|"
  printf '%s\n' "${rows[@]}"
  say
  say "apt refuses the repository when a list was changed, and when it is not signed."
}

main "$@"
