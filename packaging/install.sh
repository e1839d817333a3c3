#!/bin/sh
# Installs a release of Cloud Sandbox, once all of it is verified:
#
#   install.sh --key FILE [--cli] [--prefix DIR] RELEASE
#
# RELEASE is a folder or a URL, FILE the public key of who signed it, got elsewhere than
# the release. On Debian and Ubuntu the packages are installed and the server is
# started; on another Linux the program is put into DIR/bin (/usr/local/bin). With
# --cli, and on macOS, it is the command line alone.
set -eu
fail() {
  echo "install: $*" >&2
  exit 1
}

key='' cli='' prefix=/usr/local release=''
while [ $# -gt 0 ]; do
  case $1 in
    --key) key=${2:?--key needs a file} && shift ;;
    --prefix) prefix=${2:?--prefix needs a folder} && shift ;;
    --cli) cli=yes ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit ;;
    -*) fail "there is no option $1: see install.sh --help" ;;
    *) release=$1 ;;
  esac
  shift
done
[ -n "$release" ] || fail "name a release, a folder or a URL: see install.sh --help"
[ -n "$key" ] || fail "name the public key of who signed the release with --key; without it anybody could have made the release"
[ -r "$key" ] || fail "the key $key cannot be read"
command -v openssl >/dev/null || fail "openssl is missing, which checks the signature: install the package openssl"

case $(uname -s) in
  Linux) system=linux ;;
  Darwin) system=darwin cli=yes ;;
  *) fail "this script knows Linux and macOS; on Windows, verify and copy cloud-sandbox-cli-windows-*.exe by hand" ;;
esac
case $(uname -m) in
  x86_64 | amd64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) fail "there is no program for the processor $(uname -m)" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# get FILE: brings a file of the release into the work folder.
get() {
  case $release in
    http://* | https://*)
      if command -v curl >/dev/null; then
        curl -fsSL --retry 3 -o "$work/$1" "$release/$1" || fail "$release/$1 could not be downloaded"
      elif command -v wget >/dev/null; then
        wget -q -O "$work/$1" "$release/$1" || fail "$release/$1 could not be downloaded"
      else
        fail "curl or wget is missing, which downloads the release: install the package curl"
      fi
      ;;
    *)
      [ -e "$release/$1" ] || fail "$release has no $1: it is no release, or not signed, or a part is missing; nothing was installed"
      cp "$release/$1" "$work/$1"
      ;;
  esac
}

sum() { if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1; }

# verified FILE: get, and compare with the signed sum.
verified() {
  want=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$1\$/\1/p" "$work/SHA256SUMS")
  [ -n "$want" ] || fail "the release has no $1; nothing was installed"
  get "$1"
  [ "$(sum "$work/$1")" = "$want" ] || fail "$1 is not what was signed: it is damaged or was changed; get the release again; nothing was installed"
}
has() { grep -q "^[0-9a-f]\{64\} [ *]$1\$" "$work/SHA256SUMS"; }

get SHA256SUMS
get SHA256SUMS.sig
openssl pkeyutl -verify -rawin -pubin -inkey "$key" -in "$work/SHA256SUMS" -sigfile "$work/SHA256SUMS.sig" >/dev/null 2>&1 ||
  fail "the release is not signed with the key $key: it was changed, or somebody else made it; nothing was installed"

# place FILE MODE TARGET: a file gets its name at once, or not at all.
place() {
  mkdir -p "$(dirname "$3")"
  cp "$work/$1" "$3.new" && chmod "$2" "$3.new" && mv "$3.new" "$3" || {
    rm -f "$3.new"
    fail "$3 could not be written; what was there before is still there"
  }
}

if [ -n "$cli" ]; then
  verified "cloud-sandbox-cli-$system-$arch"
  place "cloud-sandbox-cli-$system-$arch" 755 "$prefix/bin/cloud-sandbox"
  echo "install: the command line is $prefix/bin/cloud-sandbox"
  exit
fi

[ "$(id -u)" = 0 ] || fail "installing a server needs root: run it as root, or with --cli --prefix DIR for the command line alone"
if command -v dpkg >/dev/null && [ "$prefix" = /usr/local ]; then
  base=''
  if has "cloud-sandbox-base_$arch.deb"; then base=cloud-sandbox-base_$arch.deb; fi
  for package in cloud-sandbox_$arch.deb $base; do verified "$package"; done
  state() { dpkg-query -W -f '${Status} ${Version}' "$1" 2>/dev/null || true; }
  before=$(state cloud-sandbox)
  # An upgrade that was interrupted is no first install: its sandboxes run.
  case $before in
    '' | *not-installed* | *config-files*) new=yes ;;
    *) new='' ;;
  esac
  # One after the other, so that the server's package is never upgraded in part: dpkg
  # keeps the earlier version of a package whose files it could not write.
  for package in cloud-sandbox_$arch.deb $base; do
    if (cd "$work" && dpkg --unpack "$package"); then continue; fi
    if [ -z "$new" ]; then
      [ "$(state cloud-sandbox)" != "$before" ] || fail "$package could not be unpacked: see above; the earlier version is still installed, and nothing was changed"
      dpkg --configure cloud-sandbox || fail "$package could not be unpacked, and the server's new package not be configured: see above, then run this again"
      fail "the server is upgraded, and its template is not: $package could not be unpacked: see above, then run this again"
    fi
    dpkg --force-remove-reinstreq -r cloud-sandbox cloud-sandbox-base >/dev/null 2>&1 || true
    fail "$package could not be unpacked, and what was new was removed again: see above"
  done
  # shellcheck disable=SC2086 # one or two names
  if ! dpkg --configure ${base:+cloud-sandbox-base} cloud-sandbox; then
    [ -n "$new" ] || fail "the packages are unpacked, and could not be configured: see above, then run \`dpkg --configure -a\`, or this again"
    dpkg --force-remove-reinstreq -r cloud-sandbox cloud-sandbox-base >/dev/null 2>&1 || true
    fail "the packages could not be configured, and were removed again: see above"
  fi
  exit
fi
verified "cloud-sandbox-linux-$arch"
if has "base-$arch.template"; then verified "base-$arch.template"; fi
# The program first: it works with an earlier template, and without one it builds it.
place "cloud-sandbox-linux-$arch" 755 "$prefix/bin/cloud-sandbox"
if [ -e "$work/base-$arch.template" ]; then place "base-$arch.template" 644 "$prefix/share/cloud-sandbox/base.template"; fi
echo "install: start the server with \`JWT_SECRET=... $prefix/bin/cloud-sandbox serve\`; \`$prefix/bin/cloud-sandbox doctor\` looks at this machine first"
