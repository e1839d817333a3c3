#!/usr/bin/env bash
# Builds grpcurl, a client of gRPC made of grpc-go, and prints where it is.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v1.9.3
dir=$PWD/.tools/grpcurl-$version
[[ -x $dir/grpcurl ]] || GOBIN=$dir go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version" >&2
echo "$dir/grpcurl"
