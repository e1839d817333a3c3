# For scripts of tests/ecosystem to source.
#
# fetch CMD ARGS: runs CMD, which downloads. If it fails because the network does, the
# script ends with status 77, for skipped, and else with 1; its last line says why.
fetch() {
  local log status=1
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  cat "$log" >&2
  if grep -qE 'ENOTFOUND|ETIMEDOUT|ECONNRESET|ECONNREFUSED|EAI_AGAIN|E50[0-9]|[Cc]onnection (refused|reset|broken)|[Tt]imed out|[Tt]emporary failure|error sending request|dns error|HTTP (error )?5[0-9][0-9]' "$log"; then status=77; fi
  echo "the download failed: $(grep -v '^ *$' "$log" | tail -n 1)"
  rm -f "$log"
  exit "$status"
}
