#!/usr/bin/env bash
# Makes a release in dist/, from the commit that is checked out: Debian packages and an apt repository of
# them, a tarball, a container image, a Helm chart and plain manifests, SBOMs, notes, and checksums.
#
#     ops/release.sh [packages|tarball|image|chart|sbom|notes|repository|checksums]...
#
# Without arguments it makes all. Two runs give the same bytes: every time is that of the commit, and no
# path of this machine is in a binary (`make reproduce` shows it). APT_KEY is the fingerprint of the
# GnuPG key that signs the repository; without it, the repository is not signed. IMAGE_REPOSITORY is where
# the chart gets the image. DIST overrides dist. Making all removes what an earlier release left there.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=ops/versions.sh
. ops/versions.sh
TARGET=${CARGO_TARGET_DIR:-target}
TOOLS=$(realpath -m "$TARGET")/tools
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
REVISION=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
ARCH=$(dpkg --print-architecture)
DIST=${DIST:-dist}
readonly CRATES=(request-receiver downstreamer kafka_producer archiver spillway)
readonly TARBALL=spillway-$VERSION-linux-$ARCH
# That of Debian 12. docs/install.md promises it.
readonly GLIBC_MAX=2.36
# Time zone, language and umask of this machine are in nothing.
umask 022
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# The paths of this machine are in no binary, also not of C code (librdkafka).
for path in "$PWD=/spillway" "$(realpath -m "$TARGET")=/target" "$cargo_home=/cargo"; do
  RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$path"
  CFLAGS="${CFLAGS:-} -ffile-prefix-map=$path"
done
export RUSTFLAGS CFLAGS CXXFLAGS=$CFLAGS
export SPILLWAY_REVISION=${REVISION:0:12}

# pack DIRECTORY NAME FILE: a tar that depends on nothing except the files.
pack() {
  tar --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u+rw,go+rX,go-w -C "$1" -c "$2" | gzip -n -9 >"$3"
}

# All at once, so that packages and tarball have the same binaries.
build() {
  cargo build --release --locked "${CRATES[@]/#/--package=}"
}

packages() {
  build
  rm -f "$DIST"/debian/spillway*.deb
  PREBUILT=1 DEB_OUT=$DIST/debian ops/debian/build.sh spillway
  PREBUILT=1 DEB_OUT=$DIST/debian ops/debian/build.sh spillway-kafka
}

# check_glibc BINARY: that it runs with GLIBC_MAX.
check_glibc() {
  local newest
  newest=$(objdump --dynamic-syms "$1" | sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -1)
  if [ "$(printf '%s\n' "$GLIBC_MAX" "$newest" | sort -V | tail -1)" != "$GLIBC_MAX" ]; then
    echo "${1##*/} needs glibc $newest, and not $GLIBC_MAX; build on Debian 12" >&2
    return 1
  fi
}

# Fails for links of pages in a directory that lead to no file there.
readonly CHECK_LINKS='
import os, re, sys

top = sys.argv[1]
found, broken = 0, []
for directory, _, files in os.walk(top):
    for page in (os.path.join(directory, name) for name in files if name.endswith(".md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", open(page, encoding="utf-8").read()):
            if "://" in link or link.startswith(("#", "mailto:")):
                continue
            found += 1
            if not os.path.exists(os.path.join(directory, link.split("#")[0])):
                broken.append(f"{os.path.relpath(page, top)}: {link}")
if broken or not found:
    sys.exit("\n".join(["links that lead nowhere in the tarball:", *sorted(broken)]))
'

is_tarball_made=
tarball() {
  build
  is_tarball_made=1
  local stage binary page more
  stage=$(mktemp -d)
  mkdir -p "$stage/$TARBALL"/{bin,man,completions,ops}
  for binary in "${CRATES[@]}"; do
    strip --strip-all -o "$stage/$TARBALL/bin/$binary" "$TARGET/release/$binary"
    check_glibc "$stage/$TARBALL/bin/$binary"
    rm -rf "$stage/pages"
    "$TARGET/release/$binary" --generate "$stage/pages"
    for page in "$stage"/pages/*.[18]; do
      more=ops/debian/man/${page##*/}
      [ ! -f "$more" ] || cat "$more" >>"$page"
      cp "$page" "$stage/$TARBALL/man/"
    done
    find "$stage/pages" -type f ! -name '*.[18]' -exec cp {} "$stage/$TARBALL/completions/" \;
  done
  cp -r ops/redis.conf ops/redis-start ops/systemd ops/nginx ops/prometheus ops/grafana ops/archive ops/backup.sh \
    ops/debian/spillway.env ops/debian/archiver.env ops/debian/console.env ops/debian/kafka.properties "$stage/$TARBALL/ops/"
  rm "$stage/$TARBALL"/ops/prometheus/*.test.yml
  mkdir "$stage/$TARBALL/ops/helm"
  copy_chart "$stage/$TARBALL/ops/helm/spillway"
  cp -r docs LICENSE-APACHE LICENSE-MIT compose.yaml "$stage/$TARBALL/"
  # The other pages, and what pages link to. Only what git knows: raw data of measurements lies beside them.
  git ls-files -z -- ':(glob)*.md' ':(glob)bench/*.md' 'bench/results/*.md' 'bench/results/*.svg' \
    request.json request-events.json stories/app/server.mjs kafka_producer/examples/consume.rs |
    xargs -0 cp --parents --target-directory "$stage/$TARBALL"
  python3 -c "$CHECK_LINKS" "$stage/$TARBALL"
  pack "$stage" "$TARBALL" "$DIST/$TARBALL.tar.gz"
  rm -rf "$stage"
}

# Copies an archive of an image without what differs from build to build: the id of the container that it
# was built in, and names of files that follow from it. Compresses its layers, and not the archive, which
# podman 4 cannot read then.
readonly WITHOUT_IDS='
import gzip, hashlib, io, json, os, sys, tarfile

source, target, tag = sys.argv[1:]
with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as new:
    def add(name, data):
        about = tarfile.TarInfo(name)
        about.size, about.mtime = len(data), int(os.environ["SOURCE_DATE_EPOCH"])
        new.addfile(about, io.BytesIO(data))

    [image] = json.load(old.extractfile("manifest.json"))
    config = json.load(old.extractfile(image["Config"]))
    config.pop("container", None)
    for part in ("config", "container_config"):
        (config.get(part) or {}).pop("Hostname", None)
    config = json.dumps(config, sort_keys=True).encode()
    image["Config"] = hashlib.sha256(config).hexdigest() + ".json"
    image["RepoTags"] = [tag]
    manifest = json.dumps([image], sort_keys=True).encode()
    for layer in image["Layers"]:
        add(layer, gzip.compress(old.extractfile(layer).read(), mtime=0))
    add(image["Config"], config)
    add("manifest.json", manifest)
'
# The format is Docker's, with which HEALTHCHECK is kept. Nothing runs in the build.
image() {
  local stage
  [ -n "$is_tarball_made" ] || tarball
  stage=$(mktemp -d)
  ops/container/collect.sh "$DIST/$TARBALL.tar.gz" "$stage/image"
  cp Containerfile "$stage/"
  buildah build --quiet --isolation chroot --format docker --timestamp "$SOURCE_DATE_EPOCH" \
    --tag "localhost/spillway:$VERSION" --build-arg VERSION="$VERSION" --build-arg REVISION="$REVISION" \
    --build-arg CREATED="$(date --utc --date="@$SOURCE_DATE_EPOCH" +%FT%TZ)" "$stage" >&2
  buildah push --quiet "localhost/spillway:$VERSION" "docker-archive:$stage/image.tar:spillway:$VERSION" >&2
  python3 -c "$WITHOUT_IDS" "$stage/image.tar" "$DIST/spillway-$VERSION-image-$ARCH.tar" "spillway:$VERSION"
  rm -rf "$stage"
}

# copy_chart DIRECTORY: the chart of this version. Links become files: it stands alone.
copy_chart() {
  cp -rL ops/helm/spillway "$1"
  sed -i "s/^version: .*/version: $VERSION/; s/^appVersion: .*/appVersion: $VERSION/" "$1/Chart.yaml"
  # Where the image is to be had, if it is anywhere.
  [ -z "${IMAGE_REPOSITORY:-}" ] ||
    sed -i "s,^  repository: spillway\$,  repository: $IMAGE_REPOSITORY," "$1/values.yaml"
}

chart() {
  local stage
  stage=$(mktemp -d)
  copy_chart "$stage/spillway"
  pack "$stage" spillway "$DIST/spillway-$VERSION-chart.tgz"
  # A helm that `go build` makes takes Kubernetes for 1.20, which the chart refuses.
  "$TOOLS/bin/helm" template spillway "$stage/spillway" --namespace spillway --kube-version "$KUBERNETES" \
    --set clientSecret.existingSecret=spillway-client --set downstreamAppUrl=http://app:3000 \
    >"$DIST/spillway-$VERSION-kubernetes.yaml"
  rm -rf "$stage"
}

# An SBOM for each binary, of what it is on this architecture. Each crate that cargo links into it must be
# in there.
sbom() {
  local name=spillway-sbom crate
  # It writes one beside the manifest of each member of the workspace.
  "$TOOLS/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --override-filename "$name"
  for crate in "${CRATES[@]}"; do
    cargo tree --locked --edges normal --package "$crate" --prefix none --format '{p}' |
      python3 -c '
import datetime, json, os, sys

source, here, target = sys.argv[1:]
bom = json.loads(open(source).read().replace(here, "/spillway"))
bom.pop("serialNumber", None)
time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
bom["metadata"]["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
components = [*bom["components"], bom["metadata"]["component"]]
found = {(one["name"], one["version"]) for one in components}
linked = {(line.split()[0], line.split()[1].removeprefix("v")) for line in sys.stdin if line.strip()}
missing = sorted(linked - found)
if missing or not linked:
    sys.exit(f"{source}: crates that are linked and not in the SBOM: {missing}")
json.dump(bom, open(target, "w"), indent=1, sort_keys=True)
print(f"{os.path.basename(target)}: {len(linked)} linked crates are in it")
' "$crate/$name.json" "$PWD" "$DIST/$crate-$VERSION-$ARCH.cdx.json"
  done
  git ls-files '*Cargo.toml' | sed "s,Cargo.toml\$,$name.json," | xargs rm -f
}

# constant COMMIT FILE NAME: the value of a constant in a source at a commit.
constant() {
  local value
  value=$(git show "$1:$2" | sed -n "s/^ *\(pub \|pub(crate) \)\?const $3: .* = \(.*\);.*/\2/p" |
    # A tuple is a version.
    sed 's/^(\(.*\), \(.*\))$/\1.\2/')
  [ -n "$value" ] || { echo "no constant $3 in $2" >&2; return 1; }
  echo "$value"
}
settings_of() { git show "$1:docs/settings.md" | sed -n 's/^| `\([A-Z_]*\)`.*/\1/p' | sort -u; }
keys_of() { git show "$1:docs/redis-schema.md" | sed -n 's/^| \[`\([^`]*\)`.*/\1/p' | sort -u; }

# changed LISTING OLD NEW: which names are new at a commit, and which are gone.
changed() {
  local of=$1 old=$2 new=$3 gone come
  come=$(comm -13 <("$of" "$old") <("$of" "$new") | sed 's/.*/`&`/' | paste -sd' ')
  gone=$(comm -23 <("$of" "$old") <("$of" "$new") | sed 's/.*/`&`/' | paste -sd' ')
  echo "new: ${come:-none}; removed: ${gone:-none}"
}

# The table of what this version reads and writes, from the code of this commit and of the last release.
compatibility() {
  local last now=HEAD row
  last=$(git describe --tags --abbrev=0 --match 'v*' --exclude "v$VERSION" 2>/dev/null || true)
  format() {
    local file=$2 name=$3 old=
    [ -z "$last" ] || old=$(constant "$last" "$file" "$name" 2>/dev/null || echo none)
    row="| $1 | $(constant "$now" "$file" "$name") |"
    echo "$row${last:+ $old |}"
  }
  echo "## Compatibility"
  echo
  echo "| | $VERSION |${last:+ ${last#v} |}"
  echo "|---|---|${last:+---|}"
  format "format of packs in the queue" webhook/src/pack.rs VERSION
  format "format of chunks of lanes" webhook/src/chunk.rs VERSION
  format "format of the overflow log" spill/src/segment.rs VERSION
  format "oldest Redis" queue/src/health.rs VERSION_MIN
  echo "| settings | $(settings_of "$now" | wc -l) |${last:+ $(settings_of "$last" | wc -l) |}"
  echo "| kinds of keys in Redis | $(keys_of "$now" | wc -l) |${last:+ $(keys_of "$last" | wc -l) |}"
  echo
  if [ -n "$last" ]; then
    echo "- Settings since ${last#v}: $(changed settings_of "$last" "$now")"
    echo "- Keys since ${last#v}: $(changed keys_of "$last" "$now")"
  else
    echo "This is the first release."
  fi
  echo "- Kubernetes: $(sed -n 's/^kubeVersion: "\(.*\)"/\1/p' ops/helm/spillway/Chart.yaml)," \
    "checked against the schemas of $KUBERNETES"
  echo "- Upgrade and downgrade: docs/upgrade.md"
  echo "- Built with $(rustc --version | cut -d' ' -f1,2), on Debian $(cat /etc/debian_version)"
}

# The section of this version, or that of what is unreleased, and what it is compatible with.
notes() {
  local wanted=$VERSION
  grep -q "^## $VERSION\b" CHANGELOG.md || wanted=Unreleased
  {
    echo "# Spillway $VERSION"
    # Links to pages lead nowhere on the page of a release: their names stay.
    awk -v wanted="$wanted" '/^## / { on = ($2 == wanted); next } on { print }' CHANGELOG.md |
      sed -E 's,\[([^]]*)\]\((docs/|#)[^)]*\),\1,g'
    compatibility
  } >"$DIST/notes.md"
}

# An apt repository that a web server can serve as it is, of all packages in dist/debian.
repository() {
  local root=$DIST/apt architectures arch lists
  architectures=$(find "$DIST/debian" -name '*.deb' | sed 's/.*_\([a-z0-9]*\)\.deb$/\1/' | sort -u)
  rm -rf "$root"
  mkdir -p "$root/pool"
  cp "$DIST"/debian/*.deb "$root/pool/"
  for arch in $architectures; do
    lists=$root/dists/stable/main/binary-$arch
    mkdir -p "$lists"
    (cd "$root" && dpkg-scanpackages --multiversion --arch "$arch" pool) >"$lists/Packages"
    gzip -n -9 -k "$lists/Packages"
  done
  # Not inside: the file would list itself.
  (cd "$root/dists/stable" && apt-ftparchive \
    -o APT::FTPArchive::Release::Origin=Spillway \
    -o APT::FTPArchive::Release::Suite=stable \
    -o APT::FTPArchive::Release::Codename=stable \
    -o APT::FTPArchive::Release::Components=main \
    -o APT::FTPArchive::Release::Architectures="$(paste -sd' ' <<<"$architectures")" release .) |
    sed "s/^Date: .*/Date: $(date --utc --date="@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')/" >"$root/Release"
  mv "$root/Release" "$root/dists/stable/Release"
  if [ -n "${APT_KEY:-}" ]; then
    gpg --batch --yes --local-user "$APT_KEY" --clearsign \
      --output "$root/dists/stable/InRelease" "$root/dists/stable/Release"
    gpg --batch --yes --local-user "$APT_KEY" --armor --detach-sign \
      --output "$root/dists/stable/Release.gpg" "$root/dists/stable/Release"
    gpg --batch --yes --output "$root/spillway.gpg" --export "$APT_KEY"
    chmod 644 "$root/spillway.gpg"
  fi
}

checksums() {
  (cd "$DIST" && find . -type f ! -name 'SHA256SUMS*' ! -path './apt/*' | sed 's,^\./,,' | sort |
    xargs --no-run-if-empty sha256sum) >"$DIST/SHA256SUMS.new"
  mv "$DIST/SHA256SUMS.new" "$DIST/SHA256SUMS"
}

main() {
  local part
  mkdir -p "$DIST/debian"
  DIST=$(realpath "$DIST")
  git diff --quiet HEAD || echo "ops/release.sh: what is not committed is in this release, too" >&2
  if [ $# = 0 ]; then
    rm -rf "$DIST"/spillway-* "$DIST"/*.cdx.json "$DIST"/{debian,apt,notes.md,SHA256SUMS}
    mkdir "$DIST/debian"
    set -- packages tarball image chart sbom notes repository checksums
  fi
  for part in "$@"; do
    case "$part" in
      packages | tarball | image | chart | sbom | notes | repository | checksums) ;;
      *)
        echo "usage: ops/release.sh [packages|tarball|image|chart|sbom|notes|repository|checksums]..." >&2
        exit 64
        ;;
    esac
    echo "## $part" >&2
    "$part"
  done
}

main "$@"
