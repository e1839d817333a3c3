#!/usr/bin/env bash
# Loads the container image of this machine's architecture into a Docker daemon of its
# own and uses it with the least rights that work: "test-image.sh RELEASE".
set -euo pipefail
release=$(realpath "$1")
cd "$(dirname "$0")/.."
arch=$(go env GOHOSTARCH)
image=$release/cloud-sandbox-image-$arch.tar
fail() { echo "image: $*" >&2; exit 1; }
((EUID == 0)) || fail "this starts a Docker daemon, which needs root"
scripts/install.sh image
work=$(mktemp -d /var/tmp/cloud-sandbox-image.XXXXXX)
export DOCKER_HOST=unix://$work/docker.sock
daemon=
ends() {
  local status=$?
  ((status == 0)) || docker logs cloud-sandbox 2>&1 | tail -n 20 >&2 || true
  docker rm -f cloud-sandbox >/dev/null 2>&1 || true
  if [[ -n $daemon ]]; then kill "$daemon" && wait "$daemon" || true; fi
  awk -v w="$work" 'index($2, w) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount
  rm -rf "$work"
}
trap ends EXIT
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" --host "$DOCKER_HOST" --iptables=false --bridge=none >"$work/log" 2>&1 &
daemon=$!
until docker version >/dev/null 2>&1; do
  ((SECONDS < 120)) || { tail "$work/log" >&2; fail "dockerd does not answer"; }
  kill -0 "$daemon" 2>/dev/null || { tail "$work/log" >&2; fail "dockerd did not start"; }
  sleep 0.1
done

docker load --quiet --input "$image" >/dev/null
# As docs/operators-guide.md has it, but for the network, which this daemon has none of.
data=/var/lib/cloud-sandbox/$$ # its groups are named by it
port=$((20000 + RANDOM % 10000))
began=${EPOCHREALTIME/./}
docker run --detach --name cloud-sandbox --network host --env CLOUD_SANDBOX_DATA="$data" --env JWT_SECRET="$(openssl rand -hex 32)" \
  --volume cloud-sandbox:/var/lib/cloud-sandbox --volume /sys/fs/cgroup:/sys/fs/cgroup:rw --cgroupns host \
  --cap-drop ALL --cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER --cap-add KILL --cap-add SETGID --cap-add SETUID \
  --security-opt seccomp=unconfined cloud-sandbox serve --addr 127.0.0.1:$port >/dev/null
inside() { docker exec --env CLOUD_SANDBOX_API_KEY="${key:-}" cloud-sandbox cloud-sandbox "$@"; }
until key=$(inside key create --tenant me --name first 2>"$work/said") && [[ $(inside run -c 'print(6 * 7)' 2>"$work/said") == 42 ]]; do
  [[ $(docker inspect --format '{{.State.Running}}' cloud-sandbox) == true ]] || fail "the server ended"
  ((${EPOCHREALTIME/./} - began < 60000000)) || fail "no answer in 60 s: $(cat "$work/said")"
  sleep 0.2
done
echo "image: from docker run to the first answer: $(awk "BEGIN {printf \"%.1f\", (${EPOCHREALTIME/./} - $began) / 1e6}") s"
box=$(inside create)
inside exec "$box" sh -c 'echo kept > /tmp/file'
inside pause "$box" >/dev/null
[[ $(inside exec "$box" cat /tmp/file) == kept ]] || fail "a pause lost a file"
inside rm "$box" >/dev/null
inside doctor >"$work/said" || fail "doctor finds a problem: $(cat "$work/said")"
builds=$(inside builds --json 2>/dev/null | jq -r '.[].build')
docker stop cloud-sandbox >/dev/null
for build in $builds; do
  find /sys/fs/cgroup -depth -path "*/cloud-sandbox-$(printf %s "$data/hosts/$build" | sha256sum | cut -c1-8)*" -type d -exec rmdir {} + || fail "the container left processes"
done
[[ $(docker inspect --format '{{.State.ExitCode}}' cloud-sandbox) == 0 ]] || fail "the server did not end well"
echo "image: run, pause and resume work with CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID alone, and it stops well"
