#!/usr/bin/env bash
# The contract of engines with real sentries on a kernel of Debian's whose only
# control groups are v2, in an emulated machine: for hosts that have v1. It needs no
# KVM and takes some seven minutes. The kernel comes from this machine's Debian mirror.
# Usage: cgroup2.sh [arguments of the test binary, such as -test.run X]
#        cgroup2.sh --kernel    prints the file of the kernel, and does no more
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh cgroup2
DATA=${DATA:-/var/lib/cloud-sandbox}
at=$PWD/.tools/cgroup2
mkdir -p "$at"

image=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[[ -n $image ]] || { echo "cgroup2: apt knows no kernel for virtual machines: run apt-get update" >&2; exit 1; }
if [[ ! -e $at/$image ]]; then
  debs=$(mktemp -d)
  (cd "$debs" && apt-get -o APT::Sandbox::User=root download -qq "$image" && dpkg-deb -x "$image"_*.deb root)
  mv "$debs"/root/boot/vmlinuz-* "$at/$image"
  rm -rf "$debs"
fi
if [[ ${1:-} == --kernel ]]; then
  echo "$at/$image"
  exit
fi

[[ -d $DATA/templates/images ]] || { echo "cgroup2: there is no template base: make test or make run builds it" >&2; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,etc,var/tmp,root,cloud/templates}
cp /bin/busybox "$root/bin/"
for name in sh mount mkdir cp ls cat ip chmod poweroff switch_root; do ln -s busybox "$root/bin/$name"; done
cp -r bin/stage "$root/cloud/stage"
cp -r "$DATA"/templates/{images,refs} "$root/cloud/templates/"
CGO_ENABLED=0 go test -c -o "$root/cloud/engine.test" ./internal/engine/gvisor
echo 'root:x:0:0::/root:/bin/sh' >"$root/etc/passwd"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
printf '%s\n' "${*:--test.run=^TestEngine\$}" >"$root/cloud/args"

# Sentries change their root, which the kernel refuses on the first one of all.
cat >"$root/init" <<'T'
#!/bin/sh
mkdir /new
mount -t tmpfs -o size=60%,mode=755 tmpfs /new
for d in bin sbin proc sys dev tmp etc var root cloud; do cp -a /$d /new/; done
chmod 1777 /new/tmp /new/var/tmp
exec switch_root /new /cloud/begin
T
cat >"$root/cloud/begin" <<'T'
#!/bin/sh
export PATH=/bin HOME=/root CLOUD_SANDBOX_E2E=/cloud/bin CLOUD_SANDBOX_TEMPLATES=/cloud/templates
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs -o mode=1777,size=60% tmpfs /var/tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
echo "cgroup v2 with $(cat /sys/fs/cgroup/cgroup.controllers), Linux $(cat /proc/sys/kernel/osrelease)"
/cloud/engine.test -test.v -test.timeout 40m $(cat /cloud/args) 2>&1
echo "the tests ended with $?"
poweroff -f
T
chmod +x "$root/init" "$root/cloud/begin"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$at/initrd"
rm -rf "$root"

log=$at/log
timeout 45m qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 7G -nographic -no-reboot \
  -kernel "$at/$image" -initrd "$at/initrd" -append 'console=ttyS0 quiet panic=-1 rdinit=/init' |
  tee "$log" | grep --line-buffered -aE '^(cgroup v2| *---|.*_test\.go|.*enginetest|the tests ended)'
rm -f "$at/initrd"
grep -qaE '^the tests ended with 0' "$log" || { echo "cgroup2: failed, see $log" >&2; exit 1; }
