#!/usr/bin/env bash
# `make release`: makes everything that a release has from what is built, into
# bin/release: "release.sh VERSION ARCH...". With RELEASE_KEY, a file with an Ed25519
# private key, the sums are signed.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
shift
to=bin/release
data=${DATA:-/var/lib/cloud-sandbox}
rm -rf "$to"
mkdir -p "$to/sbom"
host=$(go env GOHOSTARCH)
GOARCH='' GOOS='' go build -o .tools/image ./internal/release/image

for arch in "$@"; do
  built=bin/linux-$arch base=
  ln "$built/cloud-sandbox" "$to/cloud-sandbox-linux-$arch"
  for program in gateway session-manager scheduler node; do
    ln "$built/$program" "$to/$program-linux-$arch"
  done
  for sbom in "$built"/sbom/*; do
    ln "$sbom" "$to/sbom/linux-$arch-$(basename "$sbom")"
  done
  # A root filesystem is made by programs of its own processor.
  if [[ $arch != "$host" ]]; then
    echo "release: SKIPPED: the template base for $arch, which only a machine with $arch can build" >&2
  elif ((EUID != 0)); then
    echo "release: SKIPPED: the template base, which only root can build" >&2
  else
    base=$to/base-$arch.template
    CLOUD_SANDBOX_URL='' "$built/cloud-sandbox" template build base --data "$data" >&2
    "$built/cloud-sandbox" template export base "$base" --data "$data" >/dev/null
  fi
  scripts/package.sh "$built" "$arch" "$version" "$to" $base
  if [[ -z $base ]]; then
    echo "release: SKIPPED: the container image for $arch, which cannot build a template itself" >&2
    continue
  fi
  .tools/image --program "$built/cloud-sandbox" --base "$base" --arch "$arch" --version "$version" --out "$to/cloud-sandbox-image-$arch.tar"
done
for client in bin/clients/*; do
  ln "$client" "$to/$(basename "${client/cloud-sandbox-/cloud-sandbox-cli-}")"
done
scripts/sbom.sh bin/clients "$version"
for sbom in bin/clients/sbom/*; do
  ln "$sbom" "$to/sbom/$(basename "$sbom")"
done
GOARCH='' GOOS='' go build -o .tools/clients ./internal/release/clients
.tools/clients --programs bin/clients --version "$version" --time "$(git log -1 --format=%ct)" --license LICENSE --out "$to"
cp packaging/install.sh "$to/install.sh"

(cd "$to" && find . -type f -printf '%P\n' | sort | xargs sha256sum >../SHA256SUMS && mv ../SHA256SUMS . && cat SHA256SUMS)
if [[ -n ${RELEASE_KEY:-} ]]; then
  openssl pkeyutl -sign -rawin -inkey "$RELEASE_KEY" -in "$to/SHA256SUMS" -out "$to/SHA256SUMS.sig"
else
  echo "release: not signed, and install.sh refuses it: set RELEASE_KEY to a file with an Ed25519 key of \`openssl genpkey -algorithm ed25519\`" >&2
fi
