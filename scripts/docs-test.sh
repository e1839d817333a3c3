#!/usr/bin/env bash
# Runs the snippets of README and docs that are marked for it, word for word,
# against a fresh server on the port that they name.
set -euo pipefail
cd "$(dirname "$0")/.."
make bin/cloud-sandbox
python=$(scripts/python-env.sh)
grpcurl=$(scripts/grpcurl.sh)
scripts/typescript-env.sh >/dev/null
NODE=$(type -P node) # bin has another program of this name
export NODE
export PATH=$PWD/bin:${grpcurl%/*}:$PATH
PORT=${PORT:-8080} scripts/with-server.sh "$python/python" tests/docs/run_snippets.py
