#!/usr/bin/env bash
# `make run-all`: the four roles as processes of their own, on this machine. One
# that ends is started again; Ctrl-C or SIGTERM ends them all, and sandboxes live
# on. BIN is where the programs are; empty: they are built first. SETTINGS is a file
# with NAME=VALUE a line; variables that are set already override it.
set -euo pipefail
cd "$(dirname "$0")/.."
bold='' plain=''
if [[ -t 1 ]]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '%s[%3ds]%s %s\n' "$bold" $SECONDS "$plain" "$*"; }
fail() { echo "make run-all: $*" >&2; exit 1; }

[[ $(uname -s) == Linux ]] || fail "sandboxes need Linux"
((EUID == 0)) || fail "the node starts sandboxes in namespaces and cgroups, which needs root: run 'sudo make run-all'"
url=http://$ADDR
if curl -sf -m 2 -o /dev/null "$url/health"; then
  fail "a server answers at $url already: use it, stop it, or choose another address with 'make run-all ADDR=localhost:8081'"
fi
if [[ -z ${BIN:-} ]]; then
  command -v go >/dev/null || fail "Go is missing: install Go 1.26 or newer from https://go.dev/dl"
  scripts/install.sh run
  say "building the four roles"
  make build-all
  BIN=bin
fi
if [[ -n ${SETTINGS:-} ]]; then
  [[ -r $SETTINGS ]] || fail "the file of settings cannot be read: SETTINGS=$SETTINGS"
  while IFS= read -r line || [[ -n $line ]]; do
    [[ -z $line || $line == '#'* ]] && continue
    name=${line%%=*}
    [[ $line == *=* && $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || fail "a line of $SETTINGS is not NAME=VALUE"
    [[ -n ${!name:-} ]] || export "$name=${line#*=}"
  done <"$SETTINGS"
fi
export CLOUD_SANDBOX_DATA=$DATA
mkdir -p "$DATA"

declare -A pid began pause
start() {
  local flags=()
  [[ $1 == gateway ]] && flags=(--dev --addr "$ADDR")
  "$BIN/$1" "${flags[@]}" &
  pid[$1]=$!
  began[$1]=$SECONDS
}
stop() {
  trap '' INT TERM
  # The gateway first: what is under way there needs the others. One that ends with
  # an error keeps nobody from ending the rest.
  for role in gateway session-manager scheduler node; do
    [[ -n ${pid[$role]:-} ]] && kill -TERM "${pid[$role]}" 2>/dev/null && wait "${pid[$role]}" 2>/dev/null || true
  done
  # Who would say that all is ready, and a role whose number was not noted yet.
  for p in $(jobs -p); do
    kill -TERM "$p" 2>/dev/null && wait "$p" 2>/dev/null || true
  done
  say "all four have ended; sandboxes live on until 'make down'"
  exit 0
}
trap stop INT TERM

roles=(node scheduler session-manager gateway)
for role in "${roles[@]}"; do
  pause[$role]=1
  start "$role"
done

# Where a role listens: as its program decides.
at() {
  local name=CLOUD_SANDBOX_${1^^}_ADDR
  name=${name//-/_}
  echo "${!name:-localhost:$2}"
}
welcome() {
  cat <<T

  gateway          $url        (API page: $url/docs)
  session-manager  http://$(at session-manager 9091)
  scheduler        http://$(at scheduler 9090)
  node             http://$(at node 9092)

  Each has /health, /ready and /metrics. Try next, in another terminal:

    TOKEN=\$(curl -s $url/api/v1/auth/token -d '{"user_id": "test", "role": "user"}' | jq -r .access_token)
    curl -s $url/api/v1/execute -H "Authorization: Bearer \$TOKEN" -d '{"language": "python", "code": "print(6 * 7)"}'

  Kill any of the four: sandboxes live on, and it is started again.
  Ctrl-C stops them all; sandboxes live on until 'make down'.

T
}

# Says once when everything can be used.
(
  for ((i = 0; i < 1200; i++)); do
    curl -sf -m 10 -o /dev/null "$url/ready" && { say "ready at $url"; welcome; exit; }
    sleep 0.1
  done
  say "not ready after two minutes: $(curl -s -m 2 "$url/ready")"
) &
announcer=$!

while :; do
  # wait -n takes whatever ends first. bash may have taken it before, and then
  # says nothing of it here: so look at each.
  ended=
  status=0
  wait -n -p ended "${pid[@]}" 2>/dev/null || status=$?
  for role in "${roles[@]}"; do
    of=$status
    if [[ ${pid[$role]} != "$ended" ]]; then
      ! kill -0 "${pid[$role]}" 2>/dev/null || continue
      of=0
      wait "${pid[$role]}" 2>/dev/null || of=$?
    fi
    if ((SECONDS - began[$role] > 30)); then pause[$role]=1; fi
    say "the $role ended with status $of and is started again"
    if ((SECONDS - began[$role] < 2)); then
      sleep "${pause[$role]}"
      pause[$role]=$((pause[$role] < 16 ? pause[$role] * 2 : 30))
    fi
    start "$role"
  done
done
