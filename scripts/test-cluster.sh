#!/usr/bin/env bash
# `make test-cluster`: two gateways, two session-managers, two schedulers and two nodes,
# each in a network namespace with a data folder and a certificate of its own, over
# PostgreSQL, Redis and an S3 server. The end-to-end tests that are not about one machine
# use both gateways in turn. In clusters beside, processes, the database and a node's
# network fail.
set -euo pipefail
cd "$(dirname "$0")/.."
((EUID == 0)) || { echo "make test-cluster: sandboxes are started by root only: run it as root" >&2; exit 1; }
source scripts/steps.sh
suite "make test-cluster" 6
scripts/install.sh cluster
DATA=${DATA:-/var/lib/cloud-sandbox}
step "build, and the template base"
make build-all bin/stage/cloud-sandbox
CLOUD_SANDBOX_URL='' bin/cloud-sandbox template build base --data "$DATA"
export CLUSTER_E2E=1 CLOUD_SANDBOX_E2E=$PWD/bin/cloud-sandbox CLOUD_SANDBOX_TEMPLATES=$DATA/templates
CLOUD_SANDBOX_GRPCURL=$(scripts/grpcurl.sh)
CLOUD_SANDBOX_VERSITYGW=$(scripts/versitygw.sh)
CLOUD_SANDBOX_POSTGRES=$(scripts/postgres.sh)
CLOUD_SANDBOX_REDIS=$(scripts/redis.sh)
export CLOUD_SANDBOX_GRPCURL CLOUD_SANDBOX_VERSITYGW CLOUD_SANDBOX_POSTGRES CLOUD_SANDBOX_REDIS
e2e() { gotest -vet=off -count=1 -timeout 30m "$@" ./tests/e2e; }
# Every run of the package starts a cluster of its own. A fault has its cluster for itself
# and is mostly a wait, so two clusters with faults are beside the one of the other tests.
# Before, three tests run alone, which compare or bound times.
timed='^TestCluster(NodeCutOff|LeaderDies|DrainAhead)$'
moves='^TestCluster(SignedBuilds|VolumesFromAnywhere|Drain)$'
step "faults that are timed"
e2e -run "$timed"
step "end to end through two gateways, beside faults"
beside "faults of nodes and their sandboxes" e2e -run "$moves"
moving=$!
beside "other faults" e2e -run '^TestCluster.' -skip "$timed|$moves"
others=$!
status=0
# Most of these tests wait for what a role does each second or for a lease.
e2e -parallel $(($(nproc) + 2)) -skip '^TestCluster.' || status=$?
# All are waited for: a run that is killed leaves sandboxes behind.
joined $moving || status=$?
joined $others || status=$?
exit $status
