#!/usr/bin/env bash
# `make test-upgrade`: the cluster of `make test-cluster`, which starts as an earlier
# version. The second machine of each role gets the present programs while sandboxes run
# and requests arrive. Then the end-to-end tests use both versions side by side. With
# SHORT=1, as CI runs it, without those that make test-cluster ran minutes before and
# that take long for a reason that has nothing to do with versions.
set -euo pipefail
cd "$(dirname "$0")/.."
((EUID == 0)) || { echo "make test-upgrade: sandboxes are started by root only: run it as root" >&2; exit 1; }
# The version before this one. A release moves it to the release before.
earlier=822426ab42e2c5ad75ddf5c0aac652c1d671e2d6
if ! git cat-file -e "$earlier^{commit}" 2>/dev/null && ! timeout 60 git fetch --quiet --depth 1 origin "$earlier"; then
  echo "make test-upgrade: SKIPPED: this clone does not have the earlier version, commit $earlier, and git fetch did not get it"
  exit 0
fi
source scripts/steps.sh
suite "make test-upgrade" 12
skip=()
if [[ -n ${SHORT:-} ]]; then
  skip=(-skip '^Test(ClusterWithoutDatabase|ClusterLeaderDies|ClusterNodeCutOff|ManyFilesAndDescriptorsAreSaved|ExactBytes|ExactBytesInJSON|Idle|CommandExecInput|CommandCancel|ShellsThatDoNotWait|BenchFromTheCommandLine|SymlinkRaces|JavaScriptContexts|Git|EveryDoorWaitsForAPause|RestoreMatrix|RAndJavaContexts|TerminalOverPauses|SnapshotsOfATenantAreBounded|VolumeFilesByRequests|CommandRun|CommandExecLargeInput|CommandNetworkRules|LostSentryGoesBackToACheckpoint)$')
fi
scripts/install.sh cluster
DATA=${DATA:-/var/lib/cloud-sandbox}
programs=$PWD/.tools/earlier-$earlier
if [[ ! -d $programs ]]; then
  step "build the earlier version"
  rm -rf "$programs.partial" "$programs.sources"
  mkdir -p "$programs.partial" "$programs.sources"
  git archive "$earlier" | tar -x -C "$programs.sources"
  # The settings of this make are not for that one.
  env -u MAKEFLAGS -u MAKELEVEL VERSION="earlier-${earlier::8}" OUT="$programs.partial" make -C "$programs.sources" build-all
  rm -rf "$programs.partial/stage" "$programs.sources"
  mv "$programs.partial" "$programs"
fi
step "build, and the template base"
make build-all
CLOUD_SANDBOX_URL='' bin/cloud-sandbox template build base --data "$DATA"
export CLUSTER_E2E=1 CLUSTER_E2E_EARLIER=$programs CLOUD_SANDBOX_E2E=$PWD/bin/cloud-sandbox CLOUD_SANDBOX_TEMPLATES=$DATA/templates
CLOUD_SANDBOX_GRPCURL=$(scripts/grpcurl.sh)
CLOUD_SANDBOX_VERSITYGW=$(scripts/versitygw.sh)
CLOUD_SANDBOX_POSTGRES=$(scripts/postgres.sh)
CLOUD_SANDBOX_REDIS=$(scripts/redis.sh)
export CLOUD_SANDBOX_GRPCURL CLOUD_SANDBOX_VERSITYGW CLOUD_SANDBOX_POSTGRES CLOUD_SANDBOX_REDIS
step "end to end through gateways of two versions"
gotest -vet=off -count=1 -parallel $(($(nproc) + 2)) -timeout 30m "${skip[@]}" ./tests/e2e
if [[ -n ${SHORT:-} ]]; then
  echo "skipped here: ${skip[1]}. To run them: make test-upgrade without SHORT=1"
fi
