#!/usr/bin/env bash
# Says where a development server is and what to try first: URL, a token for it,
# and the program. Lines that are set in by four spaces work as they are pasted.
set -euo pipefail
url=$1 token=$2 program=$3
cat <<T

  Address   $url        (API page: $url/docs)
  Token     $token

  Try next, in another terminal:

    curl -s $url/api/v1/execute -H 'Authorization: Bearer $token' -H 'Content-Type: application/json' -d '{"language": "python", "code": "print(6 * 7)"}'
    $program run --url $url -c 'print(6 * 7)'

  Then: docs/quick-start.md. Ctrl-C stops the server; sandboxes live on until 'make down'.
T
