#!/usr/bin/env bash
# Runs every folder beside this file that has package.json.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/ecosystem/package.sh
for folder in tests/ecosystem/node/*/; do
  name=$(basename "$folder")
  version=$(sed -n 's/^  "dependencies": { "[^"]*": "\([^"]*\)".*/\1/p' "$folder/package.json")
  package "$name" "$version" tests/ecosystem/node/one.sh "$name"
done
packages_end
