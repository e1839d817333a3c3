#!/usr/bin/env bash
# Generates api/gen from api/proto, and the types of the TypeScript SDK from
# api/openapi.yaml. With --check it changes nothing and fails if the committed code is
# not what these sources give; while the sources are those that it was generated from,
# that is one comparison for each.
set -euo pipefail
cd "$(dirname "$0")/.."
buf_version=1.75.0
stamp=api/gen/.sources.sha256

sources() {
  { find api/proto -name '*.proto' -print0 | sort -z | xargs -0 sha256sum; sha256sum api/buf.yaml api/buf.gen.yaml
    echo "buf $buf_version"; grep -E 'connectrpc.com/connect |google.golang.org/protobuf ' tools/go.mod; } | sha256sum
}
types_stamp=sdk/typescript/src/api/.sources.sha256
types_sources() {
  { sha256sum api/openapi.yaml; grep -E '"generate":|"openapi-typescript":' sdk/typescript/package.json; } | sha256sum
}
types_code() { sha256sum <sdk/typescript/src/api/schema.ts; }
code() { find api/gen -name '*.go' -print0 | sort -z | xargs -0 sha256sum | sha256sum; }

if [[ ${1:-} == --check ]]; then
  stale=''
  [[ $(cat "$stamp" 2>/dev/null) == "$(sources) $(code)" ]] || stale+="api/gen is not what api/proto gives; "
  [[ $(cat "$types_stamp" 2>/dev/null) == "$(types_sources) $(types_code)" ]] || stale+="sdk/typescript/src/api/schema.ts is not what api/openapi.yaml gives; "
  [[ -z $stale ]] || { echo "${stale}run 'make generate' and commit" >&2; exit 1; }
  exit 0
fi
(cd "$(scripts/typescript-env.sh --no-build)" && npm run --silent generate)
echo "$(types_sources) $(types_code)" >"$types_stamp"

if [[ $(cat "$stamp" 2>/dev/null) == "$(sources) $(code)" ]]; then exit 0; fi
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
