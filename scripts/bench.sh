#!/usr/bin/env bash
# Measures Cloud Sandbox beside Docker and bare runsc: bench.sh quick|full.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-quick}
DATA=${DATA:-/var/lib/cloud-sandbox}
((EUID == 0)) || { echo "bench: measuring starts sandboxes and Docker, which needs root" >&2; exit 1; }
scripts/install.sh bench
make bin/cloud-sandbox
mkdir -p .tools
# runsc itself, of the same version, for the comparison only.
CGO_ENABLED=0 go build -modfile=tools/go.mod -trimpath -ldflags '-s -w' -o .tools/runsc gvisor.dev/gvisor/runsc
# The same command as bin/cloud-sandbox bench, with the parts that need this repository.
go build -tags rivals -o .tools/cloud-sandbox ./cmd/cloud-sandbox
go build -C tools/plots -o "$PWD/.tools/plots" .
CLOUD_SANDBOX_URL='' bin/cloud-sandbox template build base --data "$DATA"

work=$(mktemp -d /var/tmp/cloud-sandbox-bench.XXXXXX)
chmod 755 "$work" # the server runs as another user
# runsc leaves a mount of its own behind.
trap 'awk -v w="$work" "index(\$2, w) == 1 {print \$2}" /proc/mounts | xargs -r umount; rm -rf "$work"' EXIT
image=$(bin/cloud-sandbox template path base --data "$DATA")
fsck.erofs --extract="$work/rootfs" "$image" >/dev/null
# Written after every part, so that what was measured stays, however it ends.
out=bin/bench
rm -rf "$out"
mkdir -p "$out"
# A thousand sandboxes are more tasks than some hosts allow (docs/operators-guide.md).
tasks=262144
for setting in kernel.pid_max kernel.threads-max; do
  if [[ $mode == full ]] && (($(sysctl -n $setting) < tasks)); then
    echo "bench: raising $setting from $(sysctl -n $setting) to $tasks until the host restarts"
    sysctl -qw $setting=$tasks
  fi
done
inputs=()
if [[ $mode == full ]]; then
  inputs=(--versitygw "$(scripts/versitygw.sh)" --sdks "$(scripts/e2b-sdks.sh)" --typescript "$(scripts/typescript-env.sh)")
fi
status=0
.tools/cloud-sandbox bench "--$mode" --binary bin/cloud-sandbox --data "$DATA" --runsc .tools/runsc --rootfs "$work/rootfs" --work "$work" --out "$out" \
  "${inputs[@]}" || status=$?
if ((status == 130)) || [[ ! -s $out/report.json ]]; then
  echo "bench: stopped; what was measured until then is in $out/" >&2
  exit "$status"
fi
.tools/plots "$out"
if [[ $mode == full ]]; then
  mkdir -p docs/benchmarks
  rm -f docs/benchmarks/*.svg
  cp "$out"/*.svg "$out/report.md" "$out/report.json" docs/benchmarks/
  go run ./tests/perf/publish README.md docs/benchmarks
  echo "tables and charts are in docs/benchmarks/, and README has the main rows"
else
  echo "tables and charts are in $out/"
fi
exit "$status"
