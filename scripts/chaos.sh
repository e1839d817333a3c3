#!/usr/bin/env bash
# `make chaos`: the cluster of `make test-cluster`, in which what SEED chooses fails while
# clients use it, for DURATION. What they saw is judged: docs/chaos.md. Before that, a
# sleeping node without its fence must make the check fail; SKIP=fence leaves that out.
set -euo pipefail
cd "$(dirname "$0")/.."
((EUID == 0)) || { echo "make chaos: sandboxes are started by root only: run it as root" >&2; exit 1; }
source scripts/steps.sh
SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
DURATION=${DURATION:-10m}
[[ $SEED =~ ^[0-9]{1,18}$ ]] || { echo "make chaos: SEED=$SEED is not a whole number" >&2; exit 1; }
[[ $DURATION =~ ^[0-9]+[smh]$ ]] || { echo "make chaos: DURATION=$DURATION is not a time such as 10m or 1h" >&2; exit 1; }
suite "make chaos"
echo "SEED=$SEED DURATION=$DURATION"
scripts/install.sh cluster
DATA=${DATA:-/var/lib/cloud-sandbox}
step "build, and the template base"
make build-all
CLOUD_SANDBOX_URL='' bin/cloud-sandbox template build base --data "$DATA"
export CLOUD_SANDBOX_E2E=$PWD/bin/cloud-sandbox CLOUD_SANDBOX_TEMPLATES=$DATA/templates
CLOUD_SANDBOX_VERSITYGW=$(scripts/versitygw.sh)
CLOUD_SANDBOX_POSTGRES=$(scripts/postgres.sh)
CLOUD_SANDBOX_REDIS=$(scripts/redis.sh)
export CLOUD_SANDBOX_VERSITYGW CLOUD_SANDBOX_POSTGRES CLOUD_SANDBOX_REDIS
export CHAOS_SEED=$SEED CHAOS_DURATION=$DURATION CHAOS_REPORT=$PWD/bin/chaos
rm -f "bin/chaos/report-$SEED.md"
if [[ ${SKIP:-} != fence ]]; then
  step "a sleeping node, with its fence and without"
  gotest -vet=off -count=1 -timeout 20m -run '^TestSleepingNode$' ./tests/chaos
fi
step "chaos, seed $SEED"
status=0
gotest -vet=off -count=1 -timeout 2h -run '^TestChaos$' ./tests/chaos || status=$?
cat "bin/chaos/report-$SEED.md" 2>/dev/null || true
((status == 0)) || echo "make chaos: again with the same plan: make chaos SEED=$SEED DURATION=$DURATION" >&2
exit $status
