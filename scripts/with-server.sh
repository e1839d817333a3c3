#!/usr/bin/env bash
# Runs a command with a fresh development server: CLOUD_SANDBOX_URL says where.
# The server and all it started are gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=${DATA:-/var/lib/cloud-sandbox}
work=$(mktemp -d /var/tmp/cloud-sandbox-test.XXXXXX)
chmod 755 "$work"
# Links, or copies where the folders are on two disks: then nothing of the first try
# may stay, in which the second would end up.
cp -al "$DATA/templates" "$work/templates" 2>/dev/null || { rm -rf "$work/templates"; cp -a "$DATA/templates" "$work/templates"; }
# Links share their locks with $DATA and with every other such server, whose builder
# this one's would then wait for.
rm -rf "$work/templates/locks" "$work/templates/builds"
port=${PORT:-18090}
bin/cloud-sandbox serve --dev --addr "127.0.0.1:$port" --data "$work" --log-level warn &
server=$!
cleanup() {
  kill -TERM $server 2>/dev/null || true
  wait $server 2>/dev/null || true
  bin/cloud-sandbox down --data "$work" >/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
export CLOUD_SANDBOX_URL=http://127.0.0.1:$port
for ((i = 0; ; i++)); do
  curl -sf -m 10 -o /dev/null "$CLOUD_SANDBOX_URL/ready" && break
  kill -0 $server 2>/dev/null || { echo "the server ended" >&2; exit 1; }
  ((i < 1800)) || { echo "the server did not become ready in three minutes: $(curl -s -m 10 "$CLOUD_SANDBOX_URL/ready")" >&2; exit 1; }
  sleep 0.1
done
"$@"
