#!/usr/bin/env bash
# Builds Pebble, an authority that speaks ACME, and the DNS server that comes with
# it, for tests, and prints the folder that they are in.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.10.1
dir=$PWD/.tools/pebble-$version
[[ -x $dir/pebble && -x $dir/pebble-challtestsrv ]] ||
  GOBIN=$dir go install "github.com/letsencrypt/pebble/v2/cmd/pebble@$version" "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@$version" >&2
echo "$dir"
