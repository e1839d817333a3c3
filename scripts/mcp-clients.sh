#!/usr/bin/env bash
# Installs the clients of MCP that are tested with, once, and prints the folder: a
# Python environment (py), a folder of node_modules (js), and the node that runs them.
# The versions are those that tests/mcp pins.
set -euo pipefail
cd "$(dirname "$0")/.."
at=$(realpath -m .tools/mcp) # npm wants no symbolic link in it
from=tests/mcp
pinned=$(cat "$from"/requirements.txt "$from"/package-lock.json | sha256sum)
if [[ $(cat "$at/stamp" 2>/dev/null) != "$pinned" ]]; then
  rm -rf "$at"
  mkdir -p "$at/js"
  python3 -m venv "$at/py" >&2
  "$at/py/bin/pip" install -q --disable-pip-version-check -r "$from/requirements.txt" >&2
  cp "$from/package.json" "$from/package-lock.json" "$at/js"
  npm ci --silent --no-audit --no-fund --prefix "$at/js" >&2
  ln -sfn "$(ls -d "$at"/js/node_modules/node-linux-*/bin/node)" "$at/node"
  echo "$pinned" >"$at/stamp"
fi
echo "$at"
