# For scripts of tests/ecosystem to source.
#
# fetch CMD ARGS: runs CMD, which downloads, up to three times if the network fails or
# nothing has come for ten minutes. If it fails in the end because the network does, the
# script ends with status 77, for skipped, and else with 1; its last line says why.
fetch() {
  local log status try
  log=$(mktemp)
  for try in 1 2 3; do
    status=0
    timeout -k 10 600 "$@" >"$log" 2>&1 || status=$?
    if ((status == 0)); then
      rm -f "$log"
      return 0
    fi
    cat "$log" >&2
    if ! of_network "$status" "$log"; then break; fi
    echo "try $try of 3 failed because of the network" >&2
    ((try == 3)) || sleep $((try * 10))
  done
  if of_network "$status" "$log"; then
    status=77
    echo "the registry did not answer in time, three times: $(grep -v '^ *$' "$log" | tail -n 1)"
  else
    status=1
    echo "the download failed: $(grep -v '^ *$' "$log" | tail -n 1)"
  fi
  rm -f "$log"
  exit "$status"
}

# of_network STATUS LOG: whether the network was the reason.
of_network() {
  [[ $1 == 124 || $1 == 137 ]] ||
    grep -qE 'ENOTFOUND|ETIMEDOUT|ECONNRESET|ECONNREFUSED|EAI_AGAIN|E50[0-9]|ERR_SOCKET_TIMEOUT|[Cc]onnection (refused|reset|broken)|[Tt]imed out|[Tt]imeout|[Tt]emporary failure|error sending request|error decoding response body|dns error|HTTP (error )?(429|5[0-9][0-9])' "$2"
}
