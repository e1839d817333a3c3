#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing, saying what for.
# Usage: install.sh run|test|cluster|image|bench|ecosystem|cgroup2|systemd
set -euo pipefail

# binary or file, package, what it is for
run=(
  "mkfs.erofs|erofs-utils|makes root filesystem images"
  "debootstrap|debootstrap|builds the template base where no registry answers"
  "zstd|zstd|packs the program"
  "curl|curl|runs the first snippet"
  "jq|jq|reads the first snippet's answer"
  "make|make|builds"
  "patch|patch|edits gVisor, see tools/gvisor"
  "/etc/ssl/certs/ca-certificates.crt|ca-certificates|trusts the package registries"
)
test=("${run[@]}"
  "gcc|gcc|the race detector needs a C compiler"
  "/usr/include/stdlib.h|libc6-dev|the race detector needs a C library"
  "git|git|the tests read the tree with it"
  "python3|python3|runs the Python SDK's tests"
  "python3-venv:|python3-venv|makes the Python SDK's environment"
  "openssl|openssl|signs a release"
  "npm|npm|runs the generator of the protocol code and the TypeScript SDK's tests"
)
# Ubuntu has Chromium as a snap alone.
if grep -qs '^ID=debian' /etc/os-release; then
  test+=("chromium|chromium|runs the TypeScript SDK and the pages in a browser")
fi
cluster=("${test[@]}"
  "nft|nftables|cuts a machine off the network"
)
image=(
  "dockerd|docker.io|runs the container image"
)
# Newer releases have the client in a package of its own.
if apt-cache show docker-cli >/dev/null 2>&1; then
  image+=("docker|docker-cli|is the client of dockerd")
fi
bench=("${run[@]}"
  "dockerd|docker.io|the comparison with Docker"
  "iptables|iptables|dockerd's network"
  "perf|linux-perf|flame charts and timelines"
)
ecosystem=("${test[@]}"
  "names-below-localhost:|libnss-myhostname|older SDKs of E2B, and clients of ports, find sandboxes by name"
)
cgroup2=(
  "qemu-system-x86_64|qemu-system-x86|emulates a machine"
  "/bin/busybox|busybox-static|is what there is in it"
  "cpio|cpio|packs it"
)
systemd=("${cgroup2[@]}"
  "debootstrap|debootstrap|makes the Debian that is booted"
)

present() {
  case $1 in
    python3-venv:) python3 -c 'import venv, ensurepip' 2>/dev/null ;;
    names-below-localhost:) getent ahosts 3000-name.localhost >/dev/null ;;
    /*) [[ -e $1 ]] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

declare -n wanted=$1
missing=()
for entry in "${wanted[@]}"; do
  IFS='|' read -r what package why <<<"$entry"
  present "$what" && continue
  echo "install: $package ($why)" >&2
  missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi
if ! command -v apt-get >/dev/null; then
  echo "install: this is neither Debian nor Ubuntu; install these by hand: ${missing[*]}" >&2
  exit 1
fi
if ((EUID != 0)); then
  echo "install: installing packages needs root; run it as root, or install these by hand: ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq) # another program may install packages, as at the start of a machine
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
