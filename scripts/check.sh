#!/usr/bin/env bash
# `make check`: what is quick. Build, generated code, vet, lint, unit tests with
# the race detector, short fuzzing.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh test
step() { printf '\n== %s\n' "$*"; }

step "generated code is fresh"
tools/generate.sh --check

step "format, vet, lint"
unformatted=$(git ls-files '*.go' | grep -v '^api/gen/' | xargs gofmt -l)
[[ -z $unformatted ]] || { echo "not formatted, run make fmt: $unformatted" >&2; exit 1; }
go vet ./...
go tool -modfile=tools/go.mod staticcheck ./...

step "build"
make build
bin/cloud-sandbox --version

step "unit tests with the race detector"
# The suites that need a built server run in make test.
CGO_ENABLED=1 go test -race $(go list ./... | grep -v -e /tests/e2e -e /tests/hostile -e /internal/engine/gvisor -e /internal/sentryhost/server)

step "short fuzzing"
go list -f '{{.Dir}} {{range .TestGoFiles}}{{.}} {{end}}{{range .XTestGoFiles}}{{.}} {{end}}' ./... | while read -r dir files; do
  for f in $files; do
    grep -oE '^func (Fuzz[A-Za-z0-9_]+)' "$dir/$f" | cut -d' ' -f2 | while read -r target; do
      echo "$dir $target"
      go test -run=NONE -fuzz="^$target\$" -fuzztime=3s "$dir" >/dev/null
    done
  done
done

step "python"
venv=.tools/venv
if [[ ! -x $venv/bin/pytest || sdk/python/requirements-dev.txt -nt $venv/stamp ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q -e sdk/python -r sdk/python/requirements-dev.txt
  touch "$venv/stamp"
fi
python=$PWD/$venv/bin
(cd sdk/python && "$python/ruff" check . && "$python/ruff" format --check . && "$python/mypy" && "$python/pytest" -q)
"$python/ruff" check tests/docs
"$python/python" -m unittest discover -q tests/docs
echo
echo "check: all is well"
