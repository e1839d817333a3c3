#!/usr/bin/env bash
# `make test-copies`: two nodes copy, delete and fetch 1,000 snapshots while they and the
# session-manager that leads crash. Every ready one restores, and no pack is left.
set -euo pipefail
cd "$(dirname "$0")/.."
CLOUD_SANDBOX_VERSITYGW=$(scripts/versitygw.sh)
CLOUD_SANDBOX_POSTGRES=$(scripts/postgres.sh)
export CLOUD_SANDBOX_VERSITYGW CLOUD_SANDBOX_POSTGRES
go test -vet=off -count=1 -v -timeout 20m -run '^TestStatesUnderCrashes$' ./internal/snapshot/replication -crash.states 1000
