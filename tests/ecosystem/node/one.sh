#!/usr/bin/env bash
# Runs one npm package, "one.sh NAME", with what package-lock.json of its folder pins,
# installed anew when that has changed:
#   example.*   the example of the documentation; model.json is the script of its model,
#               and example.out has the lines that it prints
#   calls.*     makes calls that the example does not
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/tests/ecosystem
source tests/ecosystem/fetch.sh
at=$(realpath -m ".tools/ecosystem/node/$1") # npm wants no symbolic link in it
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work MASTRA_TELEMETRY_DISABLED=1 DO_NOT_TRACK=1 npm_config_cache=$at/../cache

pins() { cat "$here/node/$1/package.json" "$here/node/$1/package-lock.json"; }
if ! cmp -s <(pins "$1") "$at/stamp"; then
  rm -rf "$at"
  mkdir -p "$at"
  cp "$here/node/$1"/package*.json "$at"
  fetch env NODE_EXTRA_CA_CERTS="${NPM_CA_CERTS:-}" npm ci --loglevel=error --no-audit --no-fund --fetch-retries=5 --fetch-timeout=60000 --prefix "$at"
  pins "$1" >"$at/stamp"
fi
PATH=$(dirname "$(ls -d "$at"/node_modules/node-linux-*/bin/node)"):$at/node_modules/.bin:$PATH
export PATH
# Beside node_modules, where programs look for what they import.
cp "$here/node/$1"/* "$work"
ln -s "$at/node_modules" "$work/node_modules"
cd "$work"

run=("$here/printed.py" example.out)
if [[ -e model.json ]]; then run+=("$here/model.py" model.json); fi
for part in example calls; do
  if [[ -e $part.mjs ]]; then "${run[@]}" node $part.mjs; else "${run[@]}" bash -euo pipefail $part.sh; fi
  run=(env)
done
