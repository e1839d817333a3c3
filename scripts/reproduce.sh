#!/usr/bin/env bash
# Builds what is committed twice, in folders of other names, under another umask,
# time zone and locale, and fails unless the programs, their parts, their SBOMs and the
# package are the same to the byte.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=$(git rev-parse HEAD)
version=$(git describe --tags --always "$commit")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# build FOLDER: what a release has for one architecture, and its sums.
build() {
  mkdir -p "$work/$1"
  git archive "$commit" | tar -x -C "$work/$1"
  (
    cd "$work/$1"
    make build-all VERSION="$version"
    scripts/sbom.sh bin "$version"
    scripts/package.sh bin "$(go env GOARCH)" "$version" bin/release
    find bin -type f -not -name '*.of' | sort | xargs sha256sum
  ) >"$work/$(basename "$1").sums"
}

(umask 022 && build one)
(umask 077 && TZ=Asia/Tokyo LC_ALL=C build further/down/two)
diff "$work/one.sums" "$work/two.sums" || { echo "two builds of the same commit differ" >&2; exit 1; }
echo "reproduced: $(wc -l <"$work/one.sums") files are the same to the byte"
