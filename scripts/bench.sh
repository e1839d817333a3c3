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
go build -o .tools/perf ./tests/perf
bin/cloud-sandbox template build base --data "$DATA"

work=$(mktemp -d /var/tmp/cloud-sandbox-bench.XXXXXX)
chmod 755 "$work" # the server runs as another user
# runsc leaves a mount of its own behind.
trap 'awk -v w="$work" "index(\$2, w) == 1 {print \$2}" /proc/mounts | xargs -r umount; rm -rf "$work"' EXIT
image=$(bin/cloud-sandbox template path base --data "$DATA")
fsck.erofs --extract="$work/rootfs" "$image" >/dev/null
.tools/perf --binary bin/cloud-sandbox --data "$DATA" --runsc .tools/runsc --rootfs "$work/rootfs" --work "$work" \
  $([[ $mode == full ]] && echo --full)
