#!/usr/bin/env bash
# Prints the flags with which go builds gVisor with our edits, the patches in
# tools/gvisor: `go build $(scripts/gvisor.sh) ./cmd/sentry`. Fails when a patch
# does not apply to the gVisor that go.mod names. No file of the module is copied
# but those that are edited.
set -euo pipefail
cd "$(dirname "$0")/.."
to=.tools/gvisor
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
(cd "$new/edited" && find . -type f -printf '%P\n') | sort |
  jq -Rn --arg at "$PWD/$to" '{Replace: [inputs | {key: "\($at)/module/\(.)", value: "\($at)/edited/\(.)"}] | from_entries}' >"$new/overlay.json"
if ! diff -rq --no-dereference "$new" "$to" >/dev/null 2>&1; then
  rm -rf "$to"
  mv "$new" "$to"
fi
echo "-modfile=$PWD/$to/go.mod -overlay=$PWD/$to/overlay.json"
