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
  echo "$folder $name, $FUZZTIME"
}
export -f fuzz

git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | while IFS=: read -r file target; do
  name=${target#func }
  [[ ! $name =~ ${1:-.} ]] || echo "./$(dirname "$file") $name"
done >"$work/targets"
[[ -s $work/targets ]] || { echo "no fuzz target is left" >&2; exit 1; }
for folder in $(cut -d' ' -f1 "$work/targets" | sort -u); do
  go test -vet=off -gcflags=all=-dwarf=false -ldflags='-s -w' -c -fuzz=. -o "$work/${folder//\//_}.test" "$folder"
done
xargs -P "$(nproc)" -L 1 bash -c 'fuzz "$@"' fuzz <"$work/targets"
[[ ! -e $work/failed ]] || { sed 's/^/fuzzing found something: /' "$work/failed" >&2; exit 1; }
echo "fuzz: $(wc -l <"$work/targets") targets, nothing found"
