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
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o .tools/runsc gvisor.dev/gvisor/runsc
go build -o .tools/perf ./tests/perf
bin/cloud-sandbox template build base --data "$DATA"

work=$(mktemp -d /tmp/cloud-sandbox-bench.XXXXXX)
trap 'rm -rf "$work"' EXIT
image=$(bin/cloud-sandbox template path base --data "$DATA")
fsck.erofs --extract="$work/rootfs" "$image" >/dev/null
.tools/perf --binary bin/cloud-sandbox --data "$DATA" --runsc .tools/runsc --rootfs "$work/rootfs" --work "$work" \
  $([[ $mode == full ]] && echo --full)
