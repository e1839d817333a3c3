#!/usr/bin/env bash
# Runs the snippets of README and docs that are marked for it, word for word,
# against a fresh server on the port that they name.
set -euo pipefail
cd "$(dirname "$0")/.."
make bin/cloud-sandbox
venv=.tools/venv
[[ -x $venv/bin/python ]] || { python3 -m venv "$venv"; "$venv/bin/pip" install -q -e sdk/python -r sdk/python/requirements-dev.txt; touch "$venv/stamp"; }
PORT=${PORT:-8080} scripts/with-server.sh "$venv/bin/python" tests/docs/run_snippets.py
