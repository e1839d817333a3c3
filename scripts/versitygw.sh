#!/usr/bin/env bash
# Builds versitygw, an S3 server over a folder, for tests and measurements, and
# prints where it is.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v1.8.0
dir=$PWD/.tools/versitygw-$version
[[ -x $dir/versitygw ]] || GOBIN=$dir go install "github.com/versity/versitygw/cmd/versitygw@$version" >&2
echo "$dir/versitygw"
