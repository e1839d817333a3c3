#!/usr/bin/env bash
# Tries the Debian packages of this machine's architecture in a fresh Debian without
# Go, compilers, systemd or a network: from `dpkg -i` to the first answer of a sandbox,
# an upgrade with a live sandbox by install.sh, removal and purge. "test-package.sh
# RELEASE KEY": a folder that `make release` made, and the private key that signed it.
set -euo pipefail
arch=${arch:-$(go env GOHOSTARCH)}
limit=60 # seconds to the first answer
say() { printf 'package: %s\n' "$*"; }
fail() { echo "package: $*" >&2; exit 1; }

outer() {
  local packages key work root
  packages=$(realpath "$1") key=$(realpath "$2")
  cd "$(dirname "$0")/.."
  ((EUID == 0)) || fail "this needs root: run it as root"
  [[ -e $packages/cloud-sandbox-base_$arch.deb ]] || fail "there is no package of the template base for $arch in $packages"
  work=$(mktemp -d /var/tmp/cloud-sandbox-package.XXXXXX)
  # shellcheck disable=SC2064 # now
  trap "rm -rf --one-file-system '$work'; find /sys/fs/cgroup -depth -path '*/cloud-sandbox-package*' -type d -exec rmdir {} + 2>/dev/null || true" EXIT
  root=$work/root
  fresh "$root"
  mkdir "$root/packages"
  earlier "$work"
  cp "$work/earlier/cloud-sandbox_$arch.deb" "$root/packages/earlier.deb"
  mkdir "$root/packages/release"
  cp "$packages"/{SHA256SUMS,SHA256SUMS.sig,install.sh,cloud-sandbox-base_"$arch".deb,cloud-sandbox_"$arch".deb} "$root/packages/release"
  openssl pkey -in "$key" -pubout -out "$root/packages/key.pub"
  verify "$packages" "$work"
  # Processes, mounts and network of its own: nothing is fetched, no port is taken, and
  # nothing stays, whatever happens.
  cp scripts/test-package.sh "$root/packages/test-package.sh"
  unshare --mount --net --pid --fork --kill-child "$BASH" scripts/test-package.sh --enter "$root"
}

# fresh makes a Debian of its essential packages, and openssl for install.sh.
fresh() {
  local cached=.tools/debian-openssl-$arch.tar
  if [[ ! -e $cached ]]; then
    local new
    new=$(mktemp -d /var/tmp/cloud-sandbox-debian.XXXXXX)
    debootstrap --variant=minbase --include=openssl bookworm "$new/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$new/log" || { tail "$new/log" >&2; fail "debootstrap failed"; }
    rm -rf "$new"/root/var/cache/apt/archives/*.deb "$new"/root/var/lib/apt/lists/*
    tar -C "$new/root" -cf "$cached.new" .
    mv "$cached.new" "$cached"
    rm -rf "$new"
  fi
  mkdir "$1"
  tar -C "$1" -xf "$cached"
}

# earlier makes the package before: of another build, with another version.
earlier() {
  local files=internal/engine/gvisor/payload/files
  mkdir -p "$1/stage" "$1/built"
  cp bin/"linux-$arch"/stage/{gvisor_sentry,link,guest.erofs} "$1/stage"
  printf 'an earlier build' >>"$1/stage/link" # nothing reads what follows a program
  scripts/pack.sh payload "$1/stage" $files
  GOARCH=$arch CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags payload -ldflags '-s -w -X main.version=0.0.1' -o "$1/built/cloud-sandbox" ./cmd/cloud-sandbox
  scripts/pack.sh payload bin/"linux-$arch"/stage $files
  scripts/package.sh "$1/built" "$arch" 0.0.0 "$1/earlier" >/dev/null
}

# verify has systemd check the unit, as it lies in the package.
verify() {
  if ! command -v systemd-analyze >/dev/null; then
    say "SKIPPED: systemd-analyze is not here, so that the unit is not verified"
    return
  fi
  dpkg-deb -x "$1/cloud-sandbox_$arch.deb" "$2/unpacked"
  sed -i "s|=/usr/bin/|=$2/unpacked/usr/bin/|; s|=/etc/|=$2/unpacked/etc/|" "$2/unpacked/lib/systemd/system/cloud-sandbox.service"
  local said
  said=$(systemd-analyze verify --man=no "$2/unpacked/lib/systemd/system/cloud-sandbox.service" 2>&1) || fail "systemd refuses the unit: $said"
  if grep -F cloud-sandbox.service <<<"$said"; then fail "systemd has something to say of the unit, see above"; fi
  say "systemd-analyze verifies the unit"
  say "SKIPPED: no systemd was booted, so that the unit has not run here"
}

# enter makes the folder the root of this mount namespace. In a chroot the kernel makes
# no user namespaces.
enter() {
  ip link set lo up
  mount --make-rprivate /
  mount --bind "$1" "$1"
  cd "$1"
  mount -t proc proc proc
  mount --rbind /sys sys
  mount --rbind /dev dev
  # A server of this machine may have the same data folder by name, and so groups of
  # the same names.
  local at group
  while read -r at; do
    group=$at/cloud-sandbox-package
    mkdir -p "$group"
    mount --bind "$group" ".$at"
  done < <(awk '$3 ~ /^cgroup2?$/ && $4 !~ /name=/ {print $2}' /proc/mounts | grep '^/sys/')
  mkdir old
  pivot_root . old
  cd /
  umount -l /old
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root arch="$arch" bash /packages/test-package.sh --within
}

# took prints the seconds since a time in microseconds.
took() { awk "BEGIN {printf \"%.1f\", (${EPOCHREALTIME/./} - $1) / 1e6}"; }

# logged runs a command whose output is only shown when it fails; nobody is there to
# answer a question.
logged() { "$@" >/tmp/log 2>&1 </dev/null || { cat /tmp/log >&2; fail "this failed: $*"; }; }

within() {
  local began answer box builds left path
  if command -v go || command -v gcc || command -v systemctl || command -v curl; then fail "this root is not bare"; fi

  refused "a first install on a full disk" "what was new was removed again" on_a_full_disk
  [[ -z $(processes) ]] || fail "after a failed install these run: $(processes)"

  began=${EPOCHREALTIME/./}
  logged dpkg -i /packages/release/cloud-sandbox-base_*.deb /packages/earlier.deb
  CLOUD_SANDBOX_API_KEY=$(cloud-sandbox key create --tenant me --name first 2>/tmp/log) || { cat /tmp/log >&2; fail "no key could be made"; }
  export CLOUD_SANDBOX_API_KEY
  until answer=$(cloud-sandbox run -c 'print(6 * 7)' 2>/tmp/log); do
    ((${EPOCHREALTIME/./} - began < limit * 1000000)) || { tail -n 20 /tmp/log /var/log/cloud-sandbox.log >&2; fail "no answer in $limit s"; }
    sleep 0.2
  done
  [[ $answer == 42 ]] || fail "6 * 7 is $answer"
  say "from dpkg -i to the first answer: $(took "$began") s (limit $limit)"
  logged cloud-sandbox doctor

  box=$(cloud-sandbox create)
  cloud-sandbox exec "$box" sh -c 'echo kept > /tmp/file'
  cloud-sandbox exec --detach "$box" sleep 1000 >/dev/null
  cp -a /packages/release /packages/changed
  printf X | dd of="$(echo /packages/changed/cloud-sandbox_*.deb)" bs=1 seek=5000 conv=notrunc status=none
  refused "a changed package" "is not what was signed" sh /packages/release/install.sh --key /packages/key.pub /packages/changed
  rm -r /packages/changed
  refused "an upgrade on a full disk" "the earlier version is still installed" on_a_full_disk
  [[ $(cloud-sandbox exec "$box" cat /tmp/file) == kept ]] || fail "the sandbox did not live through the failed upgrades"
  say "packages that are changed, or that the disk has no room for, leave all as it was"
  began=${EPOCHREALTIME/./}
  logged sh /packages/release/install.sh --key /packages/key.pub /packages/release
  [[ $(cloud-sandbox exec "$box" cat /tmp/file) == kept ]] || fail "the sandbox lost its file"
  cloud-sandbox exec "$box" pgrep -x sleep >/dev/null || fail "the program did not live through the upgrade"
  [[ $(cloud-sandbox run -c 'print(6 * 7)') == 42 ]] || fail "the upgraded server does not answer"
  builds=$(cloud-sandbox builds --json 2>/dev/null | grep -c '"running": true')
  ((builds == 2)) || fail "$builds builds run, and the sandbox should be in the earlier of two"
  say "an upgrade with a live sandbox: $(took "$began") s, and nothing was lost"

  logged dpkg -r cloud-sandbox
  left=$(processes)
  [[ -z $left ]] || fail "after the removal these run: $left"
  [[ -d /var/lib/cloud-sandbox/server ]] || fail "the removal took the data"
  logged dpkg -P cloud-sandbox cloud-sandbox-base
  for path in /var/lib/cloud-sandbox /etc/cloud-sandbox /usr/share/cloud-sandbox /usr/lib/cloud-sandbox /usr/bin/cloud-sandbox /lib/systemd/system/cloud-sandbox.service; do
    [[ ! -e $path ]] || fail "after the purge $path is there"
  done
  say "removal left nothing running, and purge no file"
}

# installed prints the state of the packages and the sum of the program.
installed() {
  dpkg-query -W -f '${Package} ${Status} ${Version}\n' 'cloud-sandbox*' 2>/dev/null | sed '/ not-installed /d'
  sha256sum /usr/bin/cloud-sandbox /usr/share/cloud-sandbox/base.template 2>/dev/null || true
}

# refused NAME SENTENCE COMMAND...: an installation fails, says so, and changes nothing.
refused() {
  local name=$1 sentence=$2 before after
  shift 2
  before=$(installed || true)
  if "$@" >/tmp/log 2>&1; then fail "$name was installed"; fi
  grep -qF "$sentence" /tmp/log || { cat /tmp/log >&2; fail "$name: it does not say '$sentence'"; }
  after=$(installed || true)
  [[ $after == "$before" ]] || fail "$name: before it there was '$before', and after it '$after'"
}

# on_a_full_disk installs the release while /usr/bin has room for little more.
on_a_full_disk() {
  local status=0 full=/tmp/full
  mkdir "$full"
  mount -t tmpfs -o size="$(($(du -sk /usr/bin | cut -f1) + 8192))k" tmpfs "$full"
  cp -a /usr/bin/. "$full"
  mount --bind "$full" /usr/bin
  sh /packages/release/install.sh --key /packages/key.pub /packages/release || status=$?
  installed >/tmp/while-full || true
  # Lazily: umount itself is a program in this folder.
  umount -l /usr/bin && umount -l "$full" && rmdir "$full" || fail "the full disk is still in place"
  # The full folder has the same content as the folder below it.
  [[ $(</tmp/while-full) == $(installed || true) ]] || fail "while the disk was full there was '$(</tmp/while-full)'"
  return "$status"
}

# processes lists all of this process namespace but this script, and what has ended.
processes() {
  local dir line
  for dir in /proc/[0-9]*; do
    line=$(tr '\0' ' ' <"$dir/cmdline" 2>/dev/null) || continue
    case $line in
      '' | *test-package.sh* | 'tr '*) ;;
      *) echo "$line" ;;
    esac
  done
}

case $1 in
  --enter) enter "$2" ;;
  --within) within ;;
  *) outer "$1" "$2" ;;
esac
