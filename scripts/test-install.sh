#!/usr/bin/env bash
# Tries install.sh with a good release, as a folder and from a server, and with broken
# ones: each is refused with a sentence, and nothing of it is installed, nor is what was
# there before changed. "test-install.sh RELEASE KEY": a folder that `make release` made,
# and the private key that signed it. The packages are tried by test-package.sh.
set -euo pipefail
release=$(realpath "$1") key=$(realpath "$2")
arch=$(go env GOHOSTARCH)
cli=cloud-sandbox-cli-linux-$arch program=cloud-sandbox-linux-$arch
work=$(mktemp -d /var/tmp/cloud-sandbox-install.XXXXXX)
server=
trap 'rm -rf "$work"; [[ -z $server ]] || kill "$server"' EXIT
fail() { echo "install test: $*" >&2; exit 1; }
openssl pkey -in "$key" -pubout -out "$work/key.pub"
openssl genpkey -algorithm ed25519 | openssl pkey -pubout -out "$work/other.pub"

# broken NAME: a copy of the parts of the release that matter here, to be changed.
broken() {
  local to=$work/$1
  mkdir "$to"
  cp -l "$release"/{SHA256SUMS,SHA256SUMS.sig,install.sh,"$cli","$program"} "$to"
  if [[ -e $release/base-$arch.template ]]; then cp -l "$release/base-$arch.template" "$to"; fi
  echo "$to"
}

# change FILE: replaces it by a copy in which one byte is another.
change() {
  cp "$1" "$1.new"
  printf X | dd of="$1.new" bs=1 seek=100 conv=notrunc status=none
  mv -f "$1.new" "$1"
}

# refused NAME SENTENCE OPTIONS...: install.sh fails, says so, and changes nothing.
refused() {
  local name=$1 sentence=$2 prefix=$work/prefix said
  shift 2
  for before in '' 'the program before'; do
    rm -rf "$prefix"
    mkdir -p "$prefix/bin"
    if [[ -n $before ]]; then echo "$before" >"$prefix/bin/cloud-sandbox"; fi
    if said=$(sh "$release/install.sh" --prefix "$prefix" "$@" 2>&1); then fail "$name was installed: $said"; fi
    [[ $said == *"$sentence"* ]] || fail "$name: it says '$said', not '$sentence'"
    [[ $(grep -c '^install: ' <<<"$said") == 1 ]] || fail "$name: it says more than a sentence: $said"
    [[ $(cat "$prefix/bin/cloud-sandbox" 2>/dev/null || true) == "$before" ]] || fail "$name: the program before was changed"
    [[ $(find "$prefix" -type f | wc -l) == $([[ -n $before ]] && echo 1 || echo 0) ]] || fail "$name: it left $(find "$prefix" -type f)"
  done
}

# installed OPTIONS...: the program is there and runs.
installed() {
  rm -rf "$work/prefix"
  sh "$release/install.sh" --prefix "$work/prefix" --key "$work/key.pub" "$@" >/dev/null
  "$work/prefix/bin/cloud-sandbox" --version >/dev/null || fail "the installed program does not run"
}

installed --cli "$release"
cmp "$work/prefix/bin/cloud-sandbox" "$release/$cli"
installed "$release"
cmp "$work/prefix/bin/cloud-sandbox" "$release/$program"
if [[ -e $release/base-$arch.template ]]; then cmp "$work/prefix/share/cloud-sandbox/base.template" "$release/base-$arch.template"; fi

python3 -u -m http.server --bind 127.0.0.1 --directory "$release" 0 >"$work/http.log" 2>&1 &
server=$!
until url=$(grep -om 1 'http://[0-9.:]*' "$work/http.log"); do
  kill -0 "$server" || fail "no web server: $(cat "$work/http.log")"
  sleep 0.05
done
installed --cli "$url"
refused "a folder of a server that is none" "could not be downloaded" --key "$work/key.pub" --cli "$url/none"

refused "a release without a key" "name the public key" --cli "$release"
refused "a release of another key" "not signed with the key" --key "$work/other.pub" --cli "$release"
refused "no release" "is no release, or not signed" --key "$work/key.pub" --cli "$work"
unsigned=$(broken unsigned) && rm "$unsigned/SHA256SUMS.sig"
refused "an unsigned release" "not signed" --key "$work/key.pub" --cli "$unsigned"
sums=$(broken sums) && change "$sums/SHA256SUMS"
refused "changed sums" "not signed with the key" --key "$work/key.pub" --cli "$sums"
changed=$(broken changed) && change "$changed/$cli" && change "$changed/$program"
refused "a changed command line" "is not what was signed" --key "$work/key.pub" --cli "$changed"
refused "a changed program" "is not what was signed" --key "$work/key.pub" "$changed"
short=$(broken short) && head -c 1000 "$release/$cli" >"$short/new" && mv -f "$short/new" "$short/$cli"
refused "a command line that ends early" "is not what was signed" --key "$work/key.pub" --cli "$short"
missing=$(broken missing) && rm "$missing/$program"
refused "a missing program" "a part is missing" --key "$work/key.pub" "$missing"
if [[ -e $release/base-$arch.template ]]; then
  base=$(broken base) && change "$base/base-$arch.template"
  refused "a changed template" "is not what was signed" --key "$work/key.pub" "$base"
fi
echo "install: good releases are installed, and 10 broken ones are refused whole"
