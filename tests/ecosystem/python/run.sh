#!/usr/bin/env bash
# Runs every folder beside this file that has requirements.txt, named as its package is.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/ecosystem/package.sh
for folder in tests/ecosystem/python/*/; do
  name=$(basename "$folder")
  version=$(sed -n "s/^$name==//p" "$folder/requirements.txt")
  package "$name" "$version" tests/ecosystem/python/one.sh "$name"
done
packages_end
