#!/usr/bin/env bash
# Writes what each program of a release is made of, as the program itself says,
# in CycloneDX: "sbom.sh OUT VERSION". The parts that are embedded have their own.
# Equal programs give equal files.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1 version=$2
# For this machine, whatever the release is for.
GOARCH= GOOS= go build -modfile=tools/sbom/go.mod -o .tools/cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
mkdir -p "$out/sbom"
for program in "$out"/stage/{gvisor_sentry,link,guest/guest} "$out"/{cloud-sandbox,gateway,session-manager,scheduler,node}; do
  .tools/cyclonedx-gomod bin -json -noserial -std -version "$version" "$program" |
    jq 'del(.metadata.timestamp, .metadata.tools[].hashes)' >"$out/sbom/$(basename "$program").cdx.json"
done
