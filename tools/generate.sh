#!/usr/bin/env bash
# Generates api/gen from api/proto. With --check it changes nothing and fails if the
# committed code is not what these sources give; while the sources are those that it
# was generated from, that is one comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
buf_version=1.75.0
stamp=api/gen/.sources.sha256

sources() {
  { find api/proto -name '*.proto' -print0 | sort -z | xargs -0 sha256sum; sha256sum api/buf.yaml api/buf.gen.yaml
    echo "buf $buf_version"; grep -E 'connectrpc.com/connect |google.golang.org/protobuf ' tools/go.mod; } | sha256sum
}
code() { find api/gen -name '*.go' -print0 | sort -z | xargs -0 sha256sum | sha256sum; }

if [[ ${1:-} == --check ]]; then
  if [[ $(cat "$stamp" 2>/dev/null) == "$(sources) $(code)" ]]; then exit 0; fi
  echo "api/gen is not what api/proto gives: run 'make generate' and commit" >&2
  exit 1
fi
buf=.tools/node_modules/.bin/buf
if [[ $($buf --version 2>/dev/null) != "$buf_version" ]]; then
  npm install --silent --no-save --prefix .tools "@bufbuild/buf@$buf_version"
fi
buf=$PWD/$buf
export GOFLAGS=-mod=mod CGO_ENABLED=0
cd api
"$buf" lint
rm -rf gen
"$buf" generate
cd ..
echo "$(sources) $(code)" >"$stamp"
