#!/usr/bin/env bash
# Installs the E2B SDKs that are tested with, once, and prints the folder: for
# each of new and old a Python environment (py) and a folder of node_modules (js),
# and the node that runs them. The versions are those that tests/e2b pins.
set -euo pipefail
cd "$(dirname "$0")/.."
at=$PWD/.tools/e2b
for age in new old; do
  from=tests/e2b/$age
  pinned=$(cat "$from"/requirements.txt "$from"/package-lock.json | sha256sum)
  if [[ $(cat "$at/$age/stamp" 2>/dev/null) == "$pinned" ]]; then continue; fi
  rm -rf "${at:?}/$age"
  mkdir -p "$at/$age/js"
  python3 -m venv "$at/$age/py" >&2
  "$at/$age/py/bin/pip" install -q --disable-pip-version-check -r "$from/requirements.txt" >&2
  cp "$from/package.json" "$from/package-lock.json" "$at/$age/js"
  npm ci --silent --no-audit --no-fund --prefix "$at/$age/js" >&2
  echo "$pinned" >"$at/$age/stamp"
done
ln -sfn "$(ls -d "$at"/new/js/node_modules/node-linux-*/bin/node)" "$at/node"
echo "$at"
