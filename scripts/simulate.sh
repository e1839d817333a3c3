#!/usr/bin/env bash
# `make simulate`: the scheduler, the session-manager and 1,000 nodes with 100,000
# sandboxes in simulated time. It draws the chart of the docs, keeps the reports of the
# nodes for BenchmarkPlacement, and runs that.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/bin/simulation
rm -rf "$out"
mkdir -p "$out/tmp"
trap 'rm -rf "$out/tmp"' EXIT
TMPDIR=${TMPDIR:-$out/tmp} GOMEMLIMIT=${GOMEMLIMIT:-3400MiB} \
  go test -vet=off -count=1 -v -timeout 3h -run '^TestSimulation$' ./tests/simulation -simulate.nodes 1000 -simulate.out "$out"
mkdir -p .tools
go build -C tools/plots -o "$PWD/.tools/plots" .
.tools/plots "$out"
cp "$out/simulation.svg" docs/simulation.svg
gzip -9nc "$out/reports.json" >tests/simulation/testdata/reports.json.gz
go test -vet=off -run '^$' -bench '^BenchmarkPlacement$' -benchtime 10s ./tests/simulation
