#!/usr/bin/env bash
# Fails when our code calls what the Go vulnerability database knows to be
# vulnerable. GOVULNDB is where that is, https://vuln.go.dev by default, or a
# file:// copy of it. Where it does not answer nothing is checked, which is said.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v1.8.0 # 1.1.4 crashes on this code
db=${GOVULNDB:-https://vuln.go.dev}
if [[ $db != file://* ]] && ! curl -fsS --max-time 20 -o /dev/null "$db/index/db.json"; then
  echo "SKIPPED: the vulnerability database $db does not answer, so NOTHING WAS CHECKED for known vulnerabilities" >&2
  exit 0
fi
dir=$PWD/.tools/govulncheck-$version
[[ -x $dir/govulncheck ]] || GOBIN=$dir go install "golang.org/x/vuln/cmd/govulncheck@$version" >&2
"$dir/govulncheck" -db "$db" ./...
