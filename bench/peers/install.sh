#!/usr/bin/env bash
# Fetches what the peers of `make peers` are made of, at pinned versions, into target/peers: npm and PyPI packages, and
# Debian packages that are unpacked there. Those are not installed: Debian's Lua module brings a LuaJIT that replaces the
# one wrk runs on, and its webhook a service. With everything there it changes nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
to=$(realpath -m "${CARGO_TARGET_DIR:-$here/../../target}")/peers
# From the archive that apt is set up for: nginx loads only modules that were built for it.
readonly DEBIAN=(libnginx-mod-http-lua libnginx-mod-http-ndk lua-resty-core lua-resty-lrucache libluajit2-5.1-2 libpcre3 webhook)

say() {
  echo "bench/peers/install.sh: $*" >&2
}

# The page names a peer without its directory as left out.
left_out() {
  say "$1 could not be fetched: it is left out"
  rm -rf "${to:?}/$1"
}

# True if a directory was made of these words.
made_of() {
  [ "$(cat "$to/$1.made" 2>/dev/null)" = "$2" ]
}

# An npm package with a lock file. Scripts of packages do not run.
npm_peer() {
  local wanted
  wanted=$(cat "$here/$1"/* | sha256sum)
  made_of "$1" "$wanted" && return
  say "npm ci of $1"
  rm -rf "${to:?}/$1"
  cp -r "$here/$1" "$to/"
  (cd "$to/$1" && npm ci --silent --ignore-scripts --no-audit --no-fund) || {
    left_out "$1"
    return
  }
  echo "$wanted" >"$to/$1.made"
}

python_peer() {
  local wanted
  wanted=$(sha256sum <"$here/$1/requirements.txt")
  made_of "$1" "$wanted" && return
  say "pip install of $1"
  rm -rf "${to:?}/$1"
  { python3 -m venv "$to/$1" &&
    "$to/$1/bin/pip" install --quiet --disable-pip-version-check -r "$here/$1/requirements.txt"; } || {
    left_out "$1"
    return
  }
  echo "$wanted" >"$to/$1.made"
}

debian_peers() {
  local wanted
  wanted="${DEBIAN[*]} for $(nginx -v 2>&1)"
  made_of debian "$wanted" && return
  say "unpacking ${DEBIAN[*]}"
  rm -rf "$to/debian" "$to/debs"
  mkdir -p "$to/debian" "$to/debs"
  (cd "$to/debs" && apt-get download "${DEBIAN[@]}" >/dev/null 2>&1) || {
    say "no such packages here"
    left_out debian
    return
  }
  for package in "$to"/debs/*.deb; do
    dpkg-deb -x "$package" "$to/debian" || {
      left_out debian
      return
    }
  done
  echo "$wanted" >"$to/debian.made"
}

mkdir -p "$to"
npm_peer express-bullmq
npm_peer express-postgres
python_peer fastapi-redis
debian_peers
