#!/usr/bin/env bash
# Installs the clients of MCP that are tested with, once, and prints the folder: a
# Python environment (py), folders of node_modules with the protocol's own clients (js)
# and with agents (agents), and the node that runs them. The versions are those that
# tests/mcp pins.
set -euo pipefail
cd "$(dirname "$0")/.."
at=$(realpath -m .tools/mcp) # npm wants no symbolic link in it
from=tests/mcp
pinned=$(cat "$from"/requirements.txt "$from"/package-lock.json "$from"/agents/package-lock.json | sha256sum)
if [[ $(cat "$at/stamp" 2>/dev/null) != "$pinned" ]]; then
  rm -rf "$at"
  mkdir -p "$at/js" "$at/agents"
  python3 -m venv "$at/py" >&2
  "$at/py/bin/pip" install -q --disable-pip-version-check -r "$from/requirements.txt" >&2
  cp "$from/package.json" "$from/package-lock.json" "$at/js"
  cp "$from/agents/package.json" "$from/agents/package-lock.json" "$at/agents"
  for folder in js agents; do npm ci --silent --no-audit --no-fund --prefix "$at/$folder" >&2; done
  ln -sfn "$(ls -d "$at"/js/node_modules/node-linux-*/bin/node)" "$at/node"
  echo "$pinned" >"$at/stamp"
fi
echo "$at"
