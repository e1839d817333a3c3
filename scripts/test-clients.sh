#!/usr/bin/env bash
# Installs the wheel and the npm packages of this machine's system from a release with
# the real pip and npm, without a network, and runs what they carry:
# "test-clients.sh RELEASE". Those of other systems do not run here.
set -euo pipefail
release=$(realpath "$1")
work=$(mktemp -d /var/tmp/cloud-sandbox-clients.XXXXXX)
server=
trap 'rm -rf "$work"; [[ -z $server ]] || kill "$server"' EXIT
fail() { echo "clients: $*" >&2; exit 1; }
cpu=x64
[[ $(uname -m) == x86_64 ]] || cpu=arm64

# works PROGRAM: it says its version, and passes its exit code and signals on.
works() {
  local status=0 pid
  "$1" --version | grep -q '^cloud-sandbox version ' || fail "$1 does not say its version"
  "$1" no-such-command >/dev/null 2>&1 || status=$?
  ((status == 2)) || fail "$1 ends with $status for a wrong command line, not 2"
  # A server that answers nothing: the command waits until it is told to end.
  : >"$work/port" # not that of the server before
  python3 -u -c 'import socket, time; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1]); time.sleep(60)' >"$work/port" &
  server=$!
  until [[ -s $work/port ]]; do sleep 0.05; done
  CLOUD_SANDBOX_API_KEY=x "$1" ls --url "http://127.0.0.1:$(cat "$work/port")" >/dev/null 2>&1 &
  pid=$!
  until grep -q ":$(printf %04X "$(cat "$work/port")") 01 " <(awk '{print $3, $4, ""}' /proc/net/tcp); do # it is connected
    kill -0 "$pid" || fail "$1 did not wait for the server"
    sleep 0.05
  done
  kill -TERM "$pid"
  status=0
  wait "$pid" || status=$?
  ((status == 130 || status == 143)) || fail "$1 ends with $status after SIGTERM"
  kill "$server"
  wait "$server" 2>/dev/null || true
  server=
}

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check --find-links "$release" --pre cloud-sandbox-cli
works "$work/venv/bin/cloud-sandbox"
"$work/venv/bin/pip" uninstall --quiet --yes cloud-sandbox-cli
[[ ! -e $work/venv/bin/cloud-sandbox ]] || fail "pip left the program"
echo "clients: pip installs the wheel, and it runs"

mkdir "$work/npm"
(cd "$work/npm" && npm init --yes >/dev/null && npm install --offline --silent --no-audit --no-fund --omit=optional "$release"/cloud-sandbox-cli-[0-9]*.tgz "$release"/cloud-sandbox-cli-linux-$cpu-*.tgz)
works "$work/npm/node_modules/.bin/cloud-sandbox"
rm -r "$work/npm/node_modules/cloud-sandbox-cli-linux-$cpu"
said=$("$work/npm/node_modules/.bin/cloud-sandbox" --version 2>&1) && fail "without the program: $said"
[[ $said == *"is not installed"* ]] || fail "without the program it says: $said"
echo "clients: npm installs the packages, and the program runs"
