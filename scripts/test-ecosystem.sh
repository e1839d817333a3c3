#!/usr/bin/env bash
# `make test-ecosystem`: runs the packages of tests/ecosystem against a fresh server, and
# prints a line for each. PACKAGES names those to run; all, if it is empty. JOBS is how
# many of each language run at once; by default as many as there are processors.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} != --with-server ]]; then
  scripts/install.sh ecosystem
  # npm downloads with the certificates of this machine, not with the server's.
  export NPM_CA_CERTS=${NODE_EXTRA_CA_CERTS:-}
  # Older SDKs of E2B reach sandboxes by name with TLS alone.
  export CLOUD_SANDBOX_DEV_TLS=true PORT=${PORT:-18095}
  exec scripts/with-server.sh scripts/test-ecosystem.sh --with-server
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ECOSYSTEM_RESULTS=$work/results ECOSYSTEM_CONFIG=$work/config CLOUD_SANDBOX=$PWD/bin/cloud-sandbox
export JOBS=${JOBS:-$(nproc)}
touch "$ECOSYSTEM_RESULTS"

broken=0
declare -A runs=()
for run in tests/ecosystem/*/run.sh; do
  "$run" &
  runs[$!]=$run
done
for pid in "${!runs[@]}"; do
  wait "$pid" || { echo "${runs[$pid]}: ended with status $?" >&2; broken=1; }
done

echo
sort -t $'\t' -k2 "$ECOSYSTEM_RESULTS" | while IFS=$'\t' read -r verdict package version seconds why; do
  printf '%-8s%-28s%-12s%5s s%s\n' "$verdict" "$package" "$version" "$seconds" "${why:+  $why}"
done
count() { grep -c "^$1" "$ECOSYSTEM_RESULTS" || true; }
echo
echo "$(count passed) passed, $(count failed) failed, $(count skipped) skipped"
((broken == 0 && $(count failed) == 0 && $(count passed) > 0))
