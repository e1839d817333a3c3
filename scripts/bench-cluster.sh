#!/usr/bin/env bash
# `make bench-cluster`: measures two machines of each role, in network namespaces over
# PostgreSQL that waits for the disk, beside the server with all roles in one process.
set -euo pipefail
cd "$(dirname "$0")/.."
((EUID == 0)) || { echo "make bench-cluster: sandboxes are started by root only: run it as root" >&2; exit 1; }
scripts/install.sh cluster
DATA=${DATA:-/var/lib/cloud-sandbox}
make build-all
CLOUD_SANDBOX_URL='' bin/cloud-sandbox template build base --data "$DATA"
CLOUD_SANDBOX_POSTGRES=$(scripts/postgres.sh)
CLOUD_SANDBOX_REDIS=$(scripts/redis.sh)
CLOUD_SANDBOX_VERSITYGW=$(scripts/versitygw.sh)
export CLOUD_SANDBOX_POSTGRES CLOUD_SANDBOX_REDIS CLOUD_SANDBOX_VERSITYGW CLOUD_SANDBOX_E2E=$PWD/bin/cloud-sandbox CLOUD_SANDBOX_TEMPLATES=$DATA/templates
go run ./tests/perf/cluster --out bin/bench-cluster
mkdir -p docs/benchmarks/cluster
cp bin/bench-cluster/report.md bin/bench-cluster/report.json docs/benchmarks/cluster/
