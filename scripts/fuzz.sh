#!/usr/bin/env bash
# `make fuzz`, and the short fuzzing of `make check`: runs every fuzz target of
# the repository for FUZZTIME each, as many at once as there are processors.
# What a target finds it writes to testdata/fuzz beside it: commit that with the
# fix. An argument is a regular expression of the targets to run.
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZTIME=${FUZZTIME:-60s}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export work FUZZCACHE=${FUZZCACHE:-$(go env GOCACHE)/fuzz}

# One target: "folder name".
fuzz() {
  local folder=$1 name=$2 program=$work/${1//\//_}.test
  local log=$work/$name.log
  if ! (cd "$folder" && "$program" -test.run=NONE -test.fuzz="^$name\$" -test.fuzztime="$FUZZTIME" \
    -test.parallel=1 -test.fuzzcachedir="$FUZZCACHE/$folder" </dev/null >"$log" 2>&1); then
    # At the end of its time Go's fuzzer may take the deadline that it set
    # itself for a failure (golang/go#75804, mended in Go 1.27). A finding says
    # more than that and is written to testdata.
    if [[ $(grep -v -e '^fuzz: elapsed' -e '^waiting for fuzzing process to terminate' -e '^FAIL$' "$log") == "--- FAIL: $name "*$'\n    context deadline exceeded' ]]; then
      echo "$folder $name, $FUZZTIME (its own deadline, nothing found)"
      return
    fi
    cat "$log" >&2
    echo "$folder $name" >>"$work/failed"
    return
  fi
  if grep -q 'without coverage guidance' "$log"; then
    echo "$folder $name ran without coverage guidance" >&2
    echo "$folder $name" >>"$work/failed"
    return
  fi
  echo "$folder $name, $FUZZTIME"
}
export -f fuzz

git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | while IFS=: read -r file target; do
  name=${target#func }
  [[ ! $name =~ ${1:-.} ]] || echo "./$(dirname "$file") $name"
done >"$work/targets"
[[ -s $work/targets ]] || { echo "no fuzz target is left" >&2; exit 1; }
# What guides the fuzzing is all that is linked in, or our packages alone where
# FUZZGUIDE is "ours": then the standard library and the dependencies are those of
# other builds, and half of the time to compile is saved.
build() {
  local guide=(-fuzz=. -gcflags=all=-dwarf=false)
  if [[ ${FUZZGUIDE:-all} == ours ]]; then
    guide=('-gcflags=github.com/cloud-sandbox/cloud-sandbox/...=-d=libfuzzer -dwarf=false')
  fi
  go test -vet=off "${guide[@]}" -ldflags='-s -w' -c -o "$work/${1//\//_}.test" "$1"
}
export -f build
# The folder with the most imports first, alone: two builds at once would both compile
# what they have in common.
cut -d' ' -f1 "$work/targets" | sort -u >"$work/folders"
first=$(xargs go list -test -f '{{len .Deps}} {{.Dir}}' <"$work/folders" | sort -rn | head -n 1 | cut -d' ' -f2)
first=./$(realpath --relative-to=. "$first")
build "$first"
{ grep -vxF "$first" "$work/folders" || true; } | xargs -P "$(nproc)" -I '{}' bash -c 'build "$1"' build '{}'
xargs -P "$(nproc)" -L 1 bash -c 'fuzz "$@"' fuzz <"$work/targets"
[[ ! -e $work/failed ]] || { sed 's/^/fuzzing failed: /' "$work/failed" >&2; exit 1; }
echo "fuzz: $(wc -l <"$work/targets") targets, nothing found"
