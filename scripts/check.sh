#!/usr/bin/env bash
# `make check`: what is quick. Build, generated code, vet, lint, known
# vulnerabilities, unit tests with the race detector, short fuzzing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
suite "make check"
scripts/install.sh test

step "generated code is fresh"
tools/generate.sh --check

step "format, vet, lint"
go mod tidy -diff
unformatted=$(git ls-files '*.go' | grep -v '^api/gen/' | xargs go tool -modfile=tools/go.mod gofumpt -l)
[[ -z $unformatted ]] || { echo "not formatted, run make fmt: $unformatted" >&2; exit 1; }
go vet ./...
go vet -tags rivals ./cmd/cloud-sandbox
go tool -modfile=tools/go.mod staticcheck ./...

step "known vulnerabilities"
scripts/vulncheck.sh

step "build"
make build-all
bin/cloud-sandbox --version

step "the command line for macOS and Windows compiles, with its tests"
# They cannot run here.
for system in darwin windows; do
  GOOS=$system go build -o /dev/null ./cmd/...
  GOOS=$system go vet ./cmd/cloud-sandbox ./internal/cli/...
  for package in $(go list ./cmd/cloud-sandbox ./internal/cli/... | grep -v /testdata); do
    GOOS=$system go test -vet=off -c -o /dev/null "$package"
  done
done
go test -vet=off -tags client ./cmd/cloud-sandbox

step "unit tests with the race detector"
# The suites that need a built server run in make test. The tests of cmd/sentry have
# nothing to race, and the race detector would need all of gVisor compiled once more
# for them alone.
gotest $(scripts/gvisor.sh) -vet=off ./cmd/sentry
# A hundred nodes in simulated time: what they are made of is tested with the race
# detector below.
gotest -vet=off ./tests/simulation
# The longest first, beside which the others run. The race detector does not look
# into SQLite, which is C that was translated: it would only slow it down. A slow
# machine may need more than the ten minutes that Go gives each package. What go
# vet has looked at it need not look at again with each way of building, and what
# debuggers read is left out of these programs anyway: it need not be made.
CGO_ENABLED=1 gotest -vet=off -race -timeout 30m -gcflags=all=-dwarf=false -gcflags='modernc.org/...=-race=false -dwarf=false' ./internal/session \
  $(go list ./... | grep -v -e /tests/e2e -e /tests/e2b -e /tests/mcp -e /tests/hostile -e /tests/simulation -e /internal/engine/gvisor$ -e /internal/engine/gvisor/sentryhost/server -e /cmd/sentry -e /internal/session$)

step "short fuzzing"
FUZZTIME=${FUZZTIME:-2s} FUZZGUIDE=ours scripts/fuzz.sh

step "typescript"
(cd "$(scripts/typescript-env.sh)" && npm run --silent check && npm test --silent)

step "python"
python=$(scripts/python-env.sh)
(cd sdk/python && "$python/ruff" check . && "$python/ruff" format --check . && "$python/mypy" && "$python/pytest" -q --durations=5)
"$python/ruff" check tests/docs tests/ecosystem
"$python/python" -m unittest discover -q tests/docs
"$python/python" -m unittest discover -q tests/ecosystem
step_ends
echo
echo "check: all is well"
