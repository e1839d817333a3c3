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
git grep -hoE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' >/dev/null || { echo "no fuzz target is left" >&2; exit 1; }
while IFS=: read -r file target; do
  echo "$(dirname "$file") ${target#func }"
  go test -run=NONE -fuzz="^${target#func }\$" -fuzztime="${FUZZTIME:-3s}" "./$(dirname "$file")" </dev/null >/dev/null
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go')

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
