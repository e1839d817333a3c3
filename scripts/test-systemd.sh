#!/usr/bin/env bash
# `make test-systemd`: boots a Debian with systemd in an emulated machine, installs the
# packages there, and has systemd start, restart, kill and stop the server while a
# sandbox lives. It needs no KVM and takes some twenty minutes. Kernel and Debian come
# from this machine's Debian mirror.
set -euo pipefail
say() { printf 'systemd: %s\n' "$*"; }
fail() { echo "systemd: $*" >&2; exit 1; }

outer() {
  cd "$(dirname "$0")/.."
  ((EUID == 0)) || fail "this needs root: run it as root"
  [[ $(go env GOHOSTARCH) == amd64 ]] || fail "the emulated machine has the processor amd64, which this one has not"
  scripts/install.sh systemd
  local at=$PWD/.tools/systemd data=${DATA:-/var/lib/cloud-sandbox} kernel work log=$PWD/.tools/systemd/log
  mkdir -p "$at"
  kernel=$(scripts/cgroup2.sh --kernel)
  [[ -d $data/templates/images ]] || fail "there is no template base: make test or make run builds it"
  work=$(mktemp -d /var/tmp/cloud-sandbox-systemd.XXXXXX)
  # shellcheck disable=SC2064 # now
  trap "rm -rf --one-file-system '$work'" EXIT

  debian "$at/debian.tar"
  mkdir "$work/root"
  tar -C "$work/root" -xf "$at/debian.tar"
  # The base template is that of this machine, as `make release` has it.
  CLOUD_SANDBOX_URL='' bin/cloud-sandbox template export base "$work/base.template" --data "$data" >/dev/null
  scripts/package.sh bin amd64 0.0.0 "$work/root/packages" "$work/base.template"
  rm "$work/base.template"
  prepare "$work/root"
  (cd "$work/root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
  rm -rf "$work/root"

  timeout 60m qemu-system-x86_64 -accel "${ACCEL:-tcg,thread=multi}" -cpu max -smp 2 -m 6G -nographic -no-reboot \
    -kernel "$kernel" -initrd "$work/initrd" -append 'console=ttyS0 quiet panic=-1 rdinit=/init' |
    tee "$log" | grep --line-buffered -aE '^systemd: ' || true
  grep -qa '^systemd: all is as it should be' "$log" || fail "it failed, see $log"
}

# debian makes the archive of a Debian with systemd, once.
debian() {
  [[ ! -e $1 ]] || return 0
  local new
  new=$(mktemp -d /var/tmp/cloud-sandbox-debian.XXXXXX)
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps bookworm "$new/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$new/log" || { tail "$new/log" >&2; fail "debootstrap made no Debian with systemd"; }
  rm -rf "$new"/root/var/cache/apt/archives/*.deb "$new"/root/var/lib/apt/lists/* "$new"/root/usr/share/{doc,locale,man}
  tar -C "$new/root" -cf "$1.new" .
  mv "$1.new" "$1"
  rm -rf "$new"
}

# prepare adds what boots, and the unit that tries the server.
prepare() {
  cp /bin/busybox "$1/busybox"
  cp scripts/test-systemd.sh "$1/packages/test-systemd.sh"
  # Sentries change their root, which the kernel refuses on the first one of all. The
  # switch_root of busybox refuses a root without a file /init.
  cat >"$1/init" <<'T'
#!/busybox sh
/busybox mkdir /new
/busybox mount -t tmpfs -o size=75%,mode=755 tmpfs /new
for d in /*; do
  case $d in /new|/dev|/busybox|/init) ;; *) /busybox mv "$d" /new/ ;; esac
done
/busybox mkdir -p /new/dev
exec /busybox switch_root /new /sbin/init
T
  chmod +x "$1/init"
  echo 3b7f0c6a4d8e41e29d5b6c7a8f901234 >"$1/etc/machine-id" # without one, systemd asks questions
  echo cloud-sandbox-test >"$1/etc/hostname"
  echo '127.0.0.1 localhost cloud-sandbox-test' >"$1/etc/hosts"
  echo 'nameserver 127.0.0.1' >"$1/etc/resolv.conf"
  cat >"$1/etc/systemd/system/trial.service" <<'T'
[Unit]
Description=Tries Cloud Sandbox
After=basic.target dbus.service

[Service]
Type=exec
Environment=HOME=/root
ExecStart=/bin/bash /packages/test-systemd.sh --within
ExecStopPost=/bin/systemctl poweroff --force --force
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
T
  mkdir -p "$1/etc/systemd/system/multi-user.target.wants"
  ln -s ../trial.service "$1/etc/systemd/system/multi-user.target.wants/trial.service"
  ln -sf /lib/systemd/system/multi-user.target "$1/etc/systemd/system/default.target"
  ln -sf /dev/null "$1/etc/systemd/system/serial-getty@ttyS0.service"
}

# took prints the seconds since a time in microseconds.
took() { awk "BEGIN {printf \"%.1f\", (${EPOCHREALTIME/./} - $1) / 1e6}"; }

# logged runs a command whose output is only shown when it fails.
logged() { "$@" >/tmp/log 2>&1 </dev/null || { cat /tmp/log; fail "this failed: $*"; }; }

# state prints a property of the unit.
state() { systemctl show -P "$1" cloud-sandbox; }

# left counts the processes in the control group of the unit.
left() { find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null | wc -l; }

# another is true once the unit has another main process.
another() { [[ $(state MainPID) != "$1" && $(state MainPID) != 0 ]]; }

# answers waits until a command succeeds: an emulated machine is slow.
answers() {
  local began=$SECONDS
  until "$@" >/tmp/answer 2>/tmp/log </dev/null; do
    ((SECONDS - began < 300)) || { cat /tmp/log; fail "not within 300 s: $*"; }
    sleep 0.5
  done
}

# alive checks that the sandbox, its file and its program are those of before.
alive() {
  answers cloud-sandbox exec "$box" cat /tmp/file
  [[ $(</tmp/answer) == kept ]] || fail "$1: the sandbox lost its file"
  [[ $(cloud-sandbox exec "$box" pgrep -x sleep) == "$program" ]] || fail "$1: the program of the sandbox has ended"
}

within() {
  trap 'status=$?; ((status == 0)) || { journalctl --no-pager -u cloud-sandbox | tail -n 60; systemctl --no-pager status cloud-sandbox; }' EXIT
  local began first
  say "$(systemctl --version | head -n 1), Linux $(uname -r), $(stat -fc %T /sys/fs/cgroup)"
  began=${EPOCHREALTIME/./}
  logged dpkg -i /packages/cloud-sandbox-base_amd64.deb /packages/cloud-sandbox_amd64.deb
  rm /packages/*.deb
  say "dpkg -i: $(took "$began") s"
  [[ $(systemctl is-enabled cloud-sandbox) == enabled ]] || fail "the package did not enable the unit"
  CLOUD_SANDBOX_API_KEY=$(cloud-sandbox key create --tenant me --name first 2>/tmp/log) || { cat /tmp/log; fail "no key could be made"; }
  export CLOUD_SANDBOX_API_KEY

  # From nothing, as at the start of a machine.
  logged systemctl stop cloud-sandbox
  logged cloud-sandbox down
  [[ $(state ActiveState) == inactive ]] || fail "after the stop the unit is $(state ActiveState)"
  began=${EPOCHREALTIME/./}
  logged systemctl start cloud-sandbox
  answers cloud-sandbox run -c 'print(6 * 7)'
  [[ $(</tmp/answer) == 42 ]] || fail "6 * 7 is $(</tmp/answer)"
  say "systemctl start to the first answer of a sandbox: $(took "$began") s"
  group=/sys/fs/cgroup$(state ControlGroup)
  [[ $(state Delegate) == yes && -d $group ]] || fail "the unit has no control group of its own: $group"

  box=$(cloud-sandbox create)
  cloud-sandbox exec "$box" sh -c 'echo kept > /tmp/file'
  logged cloud-sandbox exec --detach "$box" sleep 100000
  answers cloud-sandbox exec "$box" pgrep -x sleep
  program=$(</tmp/answer)

  first=$(state MainPID)
  began=${EPOCHREALTIME/./}
  logged systemctl restart cloud-sandbox
  [[ $(state MainPID) != "$first" ]] || fail "the restart left the same process"
  alive "after a restart"
  say "systemctl restart with a live sandbox: $(took "$began") s, and nothing was lost"

  first=$(state MainPID)
  kill -KILL "$first"
  answers another "$first"
  alive "after kill -9"
  [[ $(state NRestarts) -ge 1 ]] || fail "systemd did not restart the server"
  say "systemd starts a killed server again, and nothing was lost"

  logged systemctl stop cloud-sandbox
  [[ $(state ActiveState) == inactive && $(state Result) == success ]] || fail "the stop left $(state ActiveState), $(state Result)"
  if cloud-sandbox ls >/tmp/log 2>&1; then fail "a stopped server answers"; fi
  (($(left) > 0)) || fail "the stop ended the sandbox"
  logged systemctl start cloud-sandbox
  alive "after stop and start"
  say "systemctl stop ends the server alone; the next start finds the sandbox"

  logged dpkg -r cloud-sandbox
  (($(left) == 0)) || fail "after the removal $(left) processes of the unit run"
  if systemctl cat cloud-sandbox >/dev/null 2>&1; then fail "the removal left the unit"; fi
  say "removal left nothing running"
  say "all is as it should be"
}

case ${1:-} in
  --within) within ;;
  *) outer ;;
esac
