#!/usr/bin/env bash
# `make chaos`: the cluster of `make test-cluster`, in which what SEED chooses fails while
# clients use it, for DURATION. What they saw is judged: docs/chaos.md. Before that, a
# sleeping node without its fence must make the check fail; SKIP=fence leaves that out.
# Each step is killed after some time. LIMIT is a number of seconds after which all is: the
# status is 124 then. Only reports, histories and logs remain, in bin/chaos.
set -euo pipefail
cd "$(dirname "$0")/.."
((EUID == 0)) || { echo "make chaos: sandboxes are started by root only: run it as root" >&2; exit 1; }
source scripts/steps.sh
SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
DURATION=${DURATION:-10m}
LIMIT=${LIMIT:-$((1 << 30))}
[[ $SEED =~ ^[0-9]{1,18}$ ]] || { echo "make chaos: SEED=$SEED is not a whole number" >&2; exit 1; }
[[ $DURATION =~ ^([0-9]{1,6})([smh])$ ]] || { echo "make chaos: DURATION=$DURATION is not a time such as 10m or 1h" >&2; exit 1; }
declare -A unit=([s]=1 [m]=60 [h]=3600)
seconds=$((10#${BASH_REMATCH[1]} * ${unit[${BASH_REMATCH[2]}]}))
[[ $LIMIT =~ ^[0-9]{1,10}$ ]] || { echo "make chaos: LIMIT=$LIMIT is not a number of seconds" >&2; exit 1; }
suite "make chaos"
echo "SEED=$SEED DURATION=$DURATION"
mkdir -p bin/chaos
work=$(mktemp -d /var/tmp/chaos-XXXXXX)
chmod 755 "$work" # PostgreSQL runs as another user
trap 'status=$?; set +e; sweep; (exit $status); suite_ends' EXIT

# sweep ends and removes what a test process that was killed has left.
sweep() {
  local folder mount device
  touch "$work/folders"
  while read -r folder; do
    [[ $folder == /var/tmp/cloud-sandbox-rig-* && -d $folder ]] || continue
    echo "make chaos: removing $folder, which a killed test left" >&2
    kill_all "$folder" # servers start their parts again: before and after
    timeout -k 5 20 bin/cloud-sandbox down --data "$folder" >&2 || true
    kill_all "$folder"
    while read -r mount; do umount -l "$mount" || true; done < <(awk -v f="$folder" 'index($2 "/", f "/") == 1 { print $2 }' /proc/mounts | sort -r)
    while read -r device; do losetup -d "$device" || true; done < <(losetup -j "$folder.img" -O NAME -n 2>/dev/null || true)
    mv -f "$folder.log" "bin/chaos/log-$SEED-${folder##*-}.txt" 2>/dev/null || true
    rm -rf --one-file-system "$folder" "$folder.img" "$folder.kept"
  done <"$work/folders"
  kill_all "$work"
  rm -rf "$work"
}

# kill_all FOLDER: kills all processes that name FOLDER, which is the name of one run.
kill_all() {
  local path pid
  for path in /proc/[0-9]*/cmdline; do
    pid=${path//[!0-9]/}
    if [[ $pid != "$$" && $pid != "$BASHPID" ]] && { tr '\0' ' ' <"$path"; } 2>/dev/null | grep -qF -e "$1/" -e "$1 "; then
      kill -9 "$pid" 2>/dev/null || true
    fi
  done
}

# bounded SECONDS ARGS: gotest, which fails after SECONDS and says what it waits for then.
bounded() {
  local left=$((LIMIT - (${EPOCHREALTIME/./} - suite_began) / 1000000)) limit=$(($1 + 60)) status=0
  ((left > 0)) || left=1
  timeout -k 10 $((left < limit ? left : limit)) .tools/times test -vet=off -count=1 -timeout "$1s" "${@:2}" ./tests/chaos || status=$?
  ((status != 137)) || status=124
  ((status != 124)) || echo "make chaos: killed: it took too long" >&2
  return $status
}

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
export CHAOS_SEED=$SEED CHAOS_DURATION=$DURATION CHAOS_REPORT=$PWD/bin/chaos CHAOS_FOLDERS=$work/folders TMPDIR=$work
rm -f "bin/chaos/report-$SEED.md"
if [[ ${SKIP:-} != fence ]]; then
  step "a sleeping node, with its fence and without"
  bounded 900 -run '^TestSleepingNode$'
fi
step "chaos, seed $SEED"
status=0
# To start it takes a minute, and all waits end four minutes after the last fault at most.
bounded $((seconds + 480)) -run '^TestChaos$' || status=$?
cat "bin/chaos/report-$SEED.md" 2>/dev/null || true
((status == 0)) || echo "make chaos: again with the same plan: make chaos SEED=$SEED DURATION=$DURATION" >&2
exit $status
