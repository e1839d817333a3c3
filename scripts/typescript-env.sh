#!/usr/bin/env bash
# Installs what the TypeScript SDK is built and tested with, anew when its pins have
# changed, compiles it anew when its source has, and prints its folder.
# With --no-build it compiles nothing.
set -euo pipefail
cd "$(dirname "$0")/../sdk/typescript"
pins() { cat package.json package-lock.json | sha256sum; }
if [[ $(cat node_modules/.stamp 2>/dev/null) != "$(pins)" ]]; then
  npm ci --silent --no-audit --no-fund >&2
  pins >node_modules/.stamp
fi
sources() { { pins; find src scripts tsconfig*.json -type f -print0 | sort -z | xargs -0 cat; } | sha256sum; }
if [[ ${1:-} != --no-build && $(cat dist/.stamp 2>/dev/null) != "$(sources)" ]]; then
  npm run --silent build >&2
  sources >dist/.stamp
fi
pwd
