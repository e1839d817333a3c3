#!/usr/bin/env bash
# `make run`: from a fresh clone to untrusted code running. Modules, gVisor and
# the template base are built side by side; the second time little is left to do.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
say() { printf '\033[1m[%3ds]\033[0m %s\n' $((SECONDS - began)) "$*"; }
fail() { echo "make run: $*" >&2; exit 1; }

[[ $(uname -s) == Linux ]] || fail "sandboxes need Linux"
((EUID == 0)) || fail "sandboxes are started in namespaces and cgroups, which needs root: run 'sudo make run'"
command -v go >/dev/null || fail "Go is missing: install Go 1.26 or newer from https://go.dev/dl"
scripts/install.sh run

url=http://$ADDR
if curl -sf -m 2 -o /dev/null "$url/health"; then
  fail "a server answers at $url already: use it, stop it, or choose another address with 'make run ADDR=localhost:8081'"
fi

say "downloading modules"
go mod download

say "building gVisor, the server and the template base side by side"
template_log=$(mktemp)
trap 'rm -f "$template_log"' EXIT
(
  make bin/stage/cloud-sandbox
  CLOUD_SANDBOX_URL='' bin/stage/cloud-sandbox template build base --data "$DATA"
) > >(tee "$template_log" | sed 's/^/        /') 2>&1 &
template=$!
make bin/cloud-sandbox
say "built $(du -h bin/cloud-sandbox | cut -f1) bin/cloud-sandbox"
wait $template || fail "the template base could not be built, see above"

say "starting the server"
bin/cloud-sandbox serve --dev --addr "$ADDR" --data "$DATA" &
server=$!
trap 'rm -f "$template_log"; kill -TERM $server 2>/dev/null; wait $server 2>/dev/null' EXIT
trap 'exit 0' INT TERM
for ((i = 0; ; i++)); do
  curl -sf -m 10 -o /dev/null "$url/ready" && break
  kill -0 $server 2>/dev/null || { wait $server; fail "the server ended"; }
  ((i < 1800)) || fail "the server did not become ready in three minutes: $(curl -s -m 10 "$url/ready")"
  sleep 0.1
done
say "ready at $url"

post() { curl -sf -X POST "$url$1" -H 'Content-Type: application/json' ${TOKEN:+-H "Authorization: Bearer $TOKEN"} -d "$2"; }
TOKEN=$(post /api/v1/auth/token '{"user_id": "test", "role": "user"}' | jq -r .access_token)
SANDBOX=$(post /api/v1/sandbox/acquire '{}' | jq -r .sandbox_id)
say "a first snippet, in the gVisor sandbox $SANDBOX:"
code='import platform, os; print("Hello from", platform.release(), "as uid", os.getuid(), "in", os.getcwd())'
post /api/v1/execute "$(jq -n --arg s "$SANDBOX" --arg c "$code" '{sandbox_id: $s, code: $c, language: "python"}')" |
  jq -r '"        \(.stdout | rtrimstr("\n"))   [\(.status), \(.duration_ms) ms]"'
post /api/v1/sandbox/release "{\"sandbox_id\": \"$SANDBOX\"}" >/dev/null

scripts/welcome.sh "$url" "$TOKEN" "$PWD/bin/cloud-sandbox"
wait $server
