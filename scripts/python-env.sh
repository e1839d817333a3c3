#!/usr/bin/env bash
# Makes the environment for the Python SDK and its tools, anew when what it needs
# has changed, and prints where its programs are.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.tools/venv
if [[ ! -x $venv/bin/pytest || sdk/python/requirements-dev.txt -nt $venv/stamp || sdk/python/pyproject.toml -nt $venv/stamp ]]; then
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q -e sdk/python -r sdk/python/requirements-dev.txt >&2
  touch "$venv/stamp"
fi
echo "$PWD/$venv/bin"
