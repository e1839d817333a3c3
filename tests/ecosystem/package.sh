# For tests/ecosystem/*/run.sh to source.
#
# package NAME VERSION CMD ARGS: runs CMD, which uses the package NAME, and notes how it
# went. It runs in the background, beside as many others as JOBS says, as a user of its
# own: no package sees the sandboxes and templates of another one. A CMD that ends with
# status 77 was skipped; the last line that it wrote says why. What a failed one wrote is
# printed. After 20 minutes a CMD is ended, and has failed.
#
# packages_end waits for all of them.
package() {
  [[ " ${PACKAGES:-$1} " == *" $1 "* ]] || return 0
  while (($(jobs -rp | wc -l) >= ${JOBS:-2})); do wait -n || true; done
  packaged "$@" &
}

packages_end() { wait; }

packaged() {
  local name=$1 version=$2 log began=$SECONDS status=0 verdict=passed why='' own
  shift 2
  log=$(mktemp)
  if own=$(variables_of "$name" 2>"$log"); then
    eval "$own"
    CLOUD_SANDBOX_API_KEY=$E2B_API_KEY timeout -k 10 1200 "$@" >"$log" 2>&1 || status=$?
  else
    status=1
  fi
  case $status in
    0) ;;
    77) verdict=skipped why=$(tail -n 1 "$log" | tr '\t' ' ') ;;
    124 | 137) verdict=failed why="it took longer than 20 minutes" ;;
    *) verdict=failed why="status $status: $(grep -v '^ *$' "$log" | tail -n 1 | tr '\t' ' ' | cut -c 1-200 || true)" ;;
  esac
  (
    flock 9 # one at a time
    if [[ $verdict == failed ]]; then sed "s/^/$name | /" "$log"; fi
    printf '%s: %s %s, %d s%s\n' "$verdict" "$name" "$version" $((SECONDS - began)) "${why:+: $why}"
    printf '%s\t%s\t%s\t%s\t%s\n' "$verdict" "$name" "$version" $((SECONDS - began)) "$why" >&9
  ) 9>>"$ECOSYSTEM_RESULTS"
  rm -f "$log"
}

# variables_of prints the variables of E2B's SDKs for the user of a package.
variables_of() {
  env -u E2B_API_KEY -u CLOUD_SANDBOX_API_KEY CLOUD_SANDBOX_USER_ID="ecosystem-$1" XDG_CONFIG_HOME="$ECOSYSTEM_CONFIG/$1" "$CLOUD_SANDBOX" e2b env
}
