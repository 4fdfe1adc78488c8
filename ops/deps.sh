#!/usr/bin/env bash
# Installs what `make run`, `make kafka`, `make test`, `make package-test`, `make release`, `make trace-test`,
# `make audit`, `make fuzz` or `make peers` needs and this machine lacks.
#
#     ops/deps.sh run     a Rust toolchain and a C compiler to build, redis-server to run
#     ops/deps.sh kafka   what librdkafka is built with, and what a Kafka broker is got and run with
#     ops/deps.sh test    both, and what the tests drive: nginx, openssl, sslscan, curl, git, node,
#                         Prometheus, systemd, strace, zstd, Python, Chromium with what drives it; gets the broker;
#                         builds vegeta and rclone with Go
#     ops/deps.sh package the first two, and what a package is tested in: debootstrap, systemd-nspawn
#     ops/deps.sh release those of a package, and what a release is made and tested with: buildah,
#                         podman, podman-compose, dpkg-dev, gnupg; builds helm and the like with Go
#     ops/deps.sh traces  those of a test; builds an OpenTelemetry Collector with Go
#     ops/deps.sh audit   cargo-deny and cargo-audit, at pinned versions, beside the build
#     ops/deps.sh fuzz    cargo-fuzz in the same way; a nightly toolchain has to be there
#     ops/deps.sh peers   those of a run, and what other receivers are run with: nginx, Node and npm, PostgreSQL, Python,
#                         wrk; fetches the receivers (bench/peers/install.sh)
#
# With everything there it changes nothing and says nothing. Packages come by apt, as root or by a
# sudo that does not ask; elsewhere it prints what to install and exits 1. It never installs Rust
# or Go, which are yours to choose, and never starts Debian's own redis, nginx or prometheus services.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=ops/versions.sh
. "$here/versions.sh"
readonly REDIS_MAJOR_MIN=7 GO_MIN=1.24 GO_MIN_RELEASE=1.26
TOOLS=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
policy_made=""

# What is looked for, and the Debian package that brings it.
tools_for() {
  case "$1" in
    run) printf '%s\n' redis-server:redis-server cc:gcc ;;
    kafka)
      printf '%s\n' cc:gcc c++:g++ cmake:cmake make:make pkg-config:pkg-config
      # Whatever Java the distribution has: Kafka 4 runs on 17 and later.
      printf '%s\n' java:default-jre-headless mvn:maven
      ;;
    package)
      tools_for run
      tools_for kafka
      printf '%s\n' debootstrap:debootstrap systemd-nspawn:systemd-container pgrep:procps curl:curl \
        python3:python3 man:man-db
      keyring
      ;;
    release)
      tools_for run
      printf '%s\n' c++:g++ cmake:cmake make:make pkg-config:pkg-config openssl:openssl python3:python3 man:man-db \
        debootstrap:debootstrap systemd-nspawn:systemd-container pgrep:procps \
        buildah:buildah podman:podman runc:runc iptables:iptables \
        /usr/lib/podman/netavark:netavark /usr/lib/podman/aardvark-dns:aardvark-dns \
        dpkg-scanpackages:dpkg-dev apt-ftparchive:apt-utils gpg:gnupg strip:binutils git:git curl:curl
      keyring
      [ -e /etc/ssl/certs/ca-certificates.crt ] || echo authorities:ca-certificates
      pip_of_python
      ;;
    peers)
      tools_for run
      printf '%s\n' nginx:nginx-light node:nodejs npm:npm wrk:wrk redis-cli:redis-tools python3:python3 unshare:util-linux
      compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgres-of-debian:postgresql
      pip_of_python
      ;;
    test | traces)
      tools_for run
      tools_for kafka
      printf '%s\n' nginx:nginx-light openssl:openssl curl:curl git:git node:nodejs \
        prometheus:prometheus systemd-analyze:systemd strace:strace chrt:util-linux sslscan:sslscan \
        zstd:zstd python3:python3 chromium:chromium
      # Pages in a browser without fonts are empty boxes.
      compgen -G '/usr/share/fonts/truetype/*' >/dev/null || echo fonts:fonts-dejavu-core
      pip_of_python
      ;;
  esac
}

# Debian's Python has pip in a package of its own.
pip_of_python() {
  python3 -c 'import ensurepip' 2>/dev/null || echo pip-of-python:python3-venv
}

# What debootstrap checks Debian's packages with. Not a program: there is none of this name.
keyring() {
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo keyring-of-debian:debian-archive-keyring
}

# Headers that librdkafka is built with, and the Debian package that brings each.
headers_for() {
  # A compiler without the C library's headers builds nothing.
  echo stdlib.h:libc6-dev
  [[ $1 = run || $1 = peers ]] || printf '%s\n' curl/curl.h:libcurl4-openssl-dev openssl/ssl.h:libssl-dev zlib.h:zlib1g-dev
}

# Debian keeps some headers by architecture.
have_header() {
  [ -e "/usr/include/$1" ] || compgen -G "/usr/include/*-linux-gnu*/$1" >/dev/null
}

# nginx lies in /usr/sbin, which is not on every user's PATH. A path is looked for as it is.
have() {
  command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]
}

missing_packages() {
  local tool header package
  tools_for "$1" | while IFS=: read -r tool package; do
    have "$tool" || echo "$package"
  done
  headers_for "$1" | while IFS=: read -r header package; do
    have_header "$header" || echo "$package"
  done
}

say() {
  echo "ops/deps.sh: $*" >&2
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() {
  [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

# Debian starts a service when its package is installed, unless this file says no. Ours is removed
# again on every way out; one that is there already is left alone.
forbid_services() {
  local policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] && return
  trap allow_services EXIT
  policy_made=$policy
  printf '#!/bin/sh\n# Made by ops/deps.sh for the time of one apt-get.\nexit 101\n' |
    as_root tee "$policy" >/dev/null
  as_root chmod 755 "$policy"
}

allow_services() {
  [ -z "$policy_made" ] || as_root rm -f "$policy_made"
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@"
}

have_lists() {
  compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null
}

install_packages() {
  say "installing $*"
  have_lists || apt_get update
  forbid_services
  # Old lists name versions that the mirror no longer has: update once and try again.
  apt_get install -y --no-install-recommends "$@" >/dev/null ||
    { apt_get update && apt_get install -y --no-install-recommends "$@" >/dev/null; }
}

# Rust as Cargo.toml asks for it: an older compiler stops at the edition, with an error that does not
# say what to do.
require_rust() {
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
  if ! command -v cargo >/dev/null; then
    say "Rust $wanted or newer is missing. Install it with:"
    say "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    exit 1
  fi
  found=$(rustc --version | cut -d ' ' -f 2)
  [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] && return
  say "Rust $wanted or newer is needed; $(command -v rustc) is $found. Update it with:"
  say "    rustup update stable        # after https://rustup.rs, if this one is from a distribution"
  exit 1
}

# Installs a cargo subcommand beside the build, if it is not there at this version.
cargo_tool() {
  local name=$1 version=$2
  [ -x "$TOOLS/bin/$name" ] && grep -q "^\"$name $version " "$TOOLS/.crates.toml" 2>/dev/null && return
  say "installing $name $version"
  cargo install --quiet --locked --root "$TOOLS" --version "$version" "$name"
}

require_nightly() {
  cargo +nightly --version >/dev/null 2>&1 && return
  say "fuzzing needs a nightly toolchain. Install one with:"
  say "    rustup toolchain install nightly"
  exit 1
}

# Debian 12 has Go 1.19, which is too old: it is not installed by apt.
require_go() {
  command -v go >/dev/null && return
  say "Go ($2 or newer), which builds $1, is missing. Install it with:"
  say "    apt-get install golang-go        # Debian 13 or newer; else from https://go.dev/dl"
  exit 1
}

require_vegeta() {
  command -v vegeta >/dev/null && return
  require_go vegeta "$GO_MIN"
  go -C "$here/../bench/vegeta" tool -n vegeta >/dev/null && return
  say "cannot build vegeta with $(go version); Go $GO_MIN or newer is needed, from https://go.dev/dl"
  exit 1
}

# rclone, which serves S3 from a directory.
rclone_server() {
  [ "$(cat "$TOOLS/bin/rclone.version" 2>/dev/null)" = "$RCLONE" ] && return
  require_go rclone "$GO_MIN"
  say "building rclone $RCLONE"
  mkdir -p "$TOOLS/bin"
  GOBIN=$TOOLS/bin CGO_ENABLED=0 go install -trimpath "github.com/rclone/rclone@v$RCLONE"
  echo "$RCLONE" >"$TOOLS/bin/rclone.version"
}

# helm, kubeconform, actionlint and chartcheck, at the versions of ops/helm/tools/go.mod, which decide
# those of all others. There is no go.sum of them in the repository, it would be larger than the chart:
# Go checks each module against its checksum database.
go_tools() {
  local tools=$TOOLS/go wanted
  wanted=$(cat "$here"/helm/tools/go.mod "$here"/helm/tools/main.go | sha256sum)
  [ "$(cat "$tools/built" 2>/dev/null)" = "$wanted" ] && return
  require_go "helm and kubeconform" "$GO_MIN_RELEASE"
  say "building helm, kubeconform, actionlint and chartcheck"
  rm -rf "$tools"
  mkdir -p "$tools" "$TOOLS/bin"
  cp "$here"/helm/tools/go.mod "$here"/helm/tools/main.go "$tools/"
  go -C "$tools" mod tidy
  go -C "$tools" build -trimpath -o "$TOOLS/bin/" helm.sh/helm/v3/cmd/helm \
    github.com/yannh/kubeconform/cmd/kubeconform github.com/rhysd/actionlint/cmd/actionlint .
  echo "$wanted" >"$tools/built"
}

# The Collector, from the modules that are listed for its builder.
collector() {
  local list=$here/opentelemetry/builder.yaml sources=$TOOLS/otelcol version
  cmp -s "$list" "$sources/built" && return
  require_go "the OpenTelemetry Collector" "$GO_MIN"
  say "building an OpenTelemetry Collector"
  version=$(sed -n 's/^  version: //p' "$list")
  rm -rf "$sources"
  mkdir -p "$sources" "$TOOLS/bin"
  sed "s,^  name:,  output_path: $sources/sources\n&," "$list" >"$sources/builder.yaml"
  go run "go.opentelemetry.io/collector/cmd/builder@v$version" --config "$sources/builder.yaml" >&2
  cp "$sources/sources/otelcol" "$TOOLS/bin/"
  cp "$list" "$sources/built"
}

# Python packages at pinned versions, in an environment of their own beside the build.
python_tools() {
  local venv=$TOOLS/$1
  shift
  [ "$(cat "$venv/version" 2>/dev/null)" = "$*" ] && return
  say "installing $*"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
  echo "$*" >"$venv/version"
}

# axe-core, which looks for what hinders people in a page. The tarball of npm, with or without npm.
axe_core() {
  local script=$TOOLS/axe.min.js fetched archive=axe-core-$AXE_CORE.tgz
  [ "$(cat "$script.version" 2>/dev/null)" = "$AXE_CORE $AXE_CORE_SHA256" ] && return
  say "fetching axe-core $AXE_CORE"
  mkdir -p "$TOOLS"
  fetched=$(mktemp -d)
  if have npm; then
    npm pack --silent --pack-destination "$fetched" "axe-core@$AXE_CORE" >/dev/null
  else
    curl --proto '=https' -fsSL -o "$fetched/$archive" "https://registry.npmjs.org/axe-core/-/$archive"
  fi
  echo "$AXE_CORE_SHA256  $fetched/$archive" | sha256sum --check --quiet
  tar -xzOf "$fetched/$archive" package/axe.min.js >"$script"
  rm -r "$fetched"
  echo "$AXE_CORE $AXE_CORE_SHA256" >"$script.version"
}

require_recent_redis() {
  local version
  version=$(redis-server --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
  [ "${version:-0}" -ge "$REDIS_MAJOR_MIN" ] && return
  say "redis-server is older than $REDIS_MAJOR_MIN.0: $(redis-server --version)"
  say "newer packages: https://redis.io/docs/latest/operate/oss_and_stack/install/"
  exit 1
}

main() {
  case "${1:-}" in
    run | kafka | test | package | release | traces | audit | fuzz | peers) ;;
    *)
      say "usage: ops/deps.sh run|kafka|test|package|release|traces|audit|fuzz|peers"
      exit 64
      ;;
  esac
  require_rust
  case "$1" in
    audit)
      cargo_tool cargo-deny "$CARGO_DENY"
      cargo_tool cargo-audit "$CARGO_AUDIT"
      return
      ;;
    fuzz)
      require_nightly
      cargo_tool cargo-fuzz "$CARGO_FUZZ"
      return
      ;;
  esac
  local packages
  mapfile -t packages < <(missing_packages "$1")
  if [ "${#packages[@]}" -gt 0 ]; then
    if ! command -v apt-get >/dev/null || ! can_be_root; then
      say "these Debian packages (or what your system calls them) are missing; install them with:"
      say "    sudo apt-get install ${packages[*]}"
      exit 1
    fi
    install_packages "${packages[@]}"
  fi
  [ "$1" = kafka ] || require_recent_redis
  case "$1" in
    peers) "$here/../bench/peers/install.sh" ;;
    test | traces)
      require_vegeta
      rclone_server
      python_tools browser "playwright==$PLAYWRIGHT" "schemathesis==$SCHEMATHESIS"
      axe_core
      "$here/kafka.sh" fetch
      [ "$1" = test ] || collector
      ;;
    release)
      cargo_tool cargo-deb "$CARGO_DEB"
      cargo_tool cargo-cyclonedx "$CARGO_CYCLONEDX"
      go_tools
      python_tools compose "podman-compose==$PODMAN_COMPOSE"
      ;;
  esac
}

main "$@"
