#!/usr/bin/env bash
# Prints the flags with which go builds gVisor with our edits, the patches in
# tools/gvisor, and with the seccomp filters of our sentries compiled beforehand:
# `go build $(scripts/gvisor.sh) ./cmd/sentry`. Fails when a patch does not apply to
# the gVisor that go.mod names. No file of the module is copied but those that are
# edited.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=$(go env GOARCH)
to=.tools/gvisor-$arch
filters=runsc/boot/filter/filter_precompiled.go
mkdir -p .tools
exec 9>.tools/gvisor.lock
flock 9 # several builds at a time write the same

module=$(go mod download -json gvisor.dev/gvisor | jq -r .Dir)
new=$(mktemp -d .tools/gvisor-new.XXXXXX)
trap 'rm -rf "$new"' EXIT
# go refuses an overlay over files in its module cache; under another name of the
# same folder it takes one. A relative name is the same in every checkout.
ln -s "$module" "$new/module"
cp go.mod go.sum "$new"
go mod edit -replace "gvisor.dev/gvisor=./$to/module" "$new/go.mod"
mkdir "$new/edited"
for p in tools/gvisor/*.patch; do
  sed -n 's|^+++ b/||p' "$p" | while read -r file; do
    [[ -e $new/edited/$file ]] || install -D -m 644 "$module/$file" "$new/edited/$file"
  done
  patch --quiet --fuzz=0 --no-backup-if-mismatch -p1 -d "$new/edited" <"$p" >&2 ||
    { echo "gvisor.sh: $p does not apply to $(basename "$module"): port it, see docs/adr/0026-layers-are-saved-in-place.md" >&2; exit 1; }
done

# overlay FOLDER: an overlay of the module in FOLDER, with what is edited there.
overlay() {
  (cd "$new/edited" && find . -type f -printf '%P\n') | sort |
    jq -Rn --arg at "$PWD/$1" '{Replace: [inputs | {key: "\($at)/module/\(.)", value: "\($at)/edited/\(.)"}] | from_entries}'
}

# What is compiled for another processor does not run here: its sentries compile
# their filters themselves, at each start.
if [[ $arch == $(go env GOHOSTARCH) ]]; then
  # It takes seventeen seconds, so its result is kept, by all that it depends on.
  key=$({ go version; echo "$module"; cat tools/gvisor/*.patch cmd/sentry/precompile/main.go; } | sha256sum | cut -c1-16)
  made=.tools/filters-$arch-$key.go
  if [[ ! -e $made ]]; then
    overlay "$new" >"$new/overlay.json"
    sed "s|\./$to/module|./$new/module|" "$new/go.mod" >"$new/here.mod"
    cp go.sum "$new/here.sum"
    CGO_ENABLED=0 go build -modfile="$PWD/$new/here.mod" -overlay="$PWD/$new/overlay.json" -o "$new/precompile" ./cmd/sentry/precompile
    "$new/precompile" "$module/$filters" >"$new/filters.go"
    mv "$new/filters.go" "$made"
    rm "$new/here.mod" "$new/here.sum" "$new/precompile"
  fi
  install -D -m 644 "$made" "$new/edited/$filters"
fi
overlay "$to" >"$new/overlay.json"
if ! diff -rq --no-dereference "$new" "$to" >/dev/null 2>&1; then
  rm -rf "$to"
  mv "$new" "$to"
fi
echo "-modfile=$PWD/$to/go.mod -overlay=$PWD/$to/overlay.json"
