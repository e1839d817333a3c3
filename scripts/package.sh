#!/usr/bin/env bash
# Makes the Debian packages of one architecture: "package.sh BUILT ARCH VERSION TO
# [BASE]". BUILT is what `make build-all` made, BASE a file of `cloud-sandbox template
# export`; without it only the server is packed. Equal programs give equal packages.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$1 arch=$2 version=$3 to=$4 base=${5:-}
# Another version than this fails with the registry's own: it fetches modules that no
# proxy has.
GOARCH='' GOOS='' go build -modfile=tools/nfpm/go.mod -o .tools/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
# A version of Debian's begins with a digit, and later ones are greater.
deb=${version#v}
deb=${deb//-/+}
at=$(git log -1 --format=%ct 2>/dev/null || echo 0)
if [[ $deb != [0-9]*.* ]]; then
  deb=0~git$(date -u -d "@$at" +%Y%m%d%H%M).$deb
fi
export ARCH=$arch DEB_VERSION=$deb BUILT=$built BASE=$base SOURCE_DATE_EPOCH=$at
mkdir -p "$to"
.tools/nfpm package --config packaging/deb.yaml --packager deb --target "$to/cloud-sandbox_$arch.deb"
if [[ -n $base ]]; then
  .tools/nfpm package --config packaging/deb-base.yaml --packager deb --target "$to/cloud-sandbox-base_$arch.deb"
fi
