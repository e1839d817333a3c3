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
# gVisor is built by another name of its module, see scripts/gvisor.sh.
gvisor=$(awk '$1 == "gvisor.dev/gvisor" {print $2; exit}' go.mod)
if [[ -d $out/stage ]]; then
  programs=("$out"/stage/{gvisor_sentry,link,guest/guest} "$out"/{cloud-sandbox,gateway,session-manager,scheduler,node})
else
  programs=("$out"/cloud-sandbox-*) # command lines alone
fi
for program in "${programs[@]}"; do
  .tools/cyclonedx-gomod bin -json -noserial -std -version "$version" "$program" |
    jq --arg gvisor "$gvisor" 'del(.metadata.timestamp, .metadata.tools[].hashes)
      | (.components[]? | select(.name | startswith("./.tools/gvisor-"))) |= (.name = "gvisor.dev/gvisor" | .version = $gvisor
        | .purl = "pkg:golang/gvisor.dev/gvisor@\($gvisor)?type=module" | .description = "with the edits of tools/gvisor")' >"$out/sbom/$(basename "$program").cdx.json"
done
