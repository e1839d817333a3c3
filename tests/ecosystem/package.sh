# For tests/ecosystem/*/run.sh to source.
#
# package NAME VERSION CMD ARGS: runs CMD, which uses the package NAME, and notes how it
# went. A CMD that ends with status 77 was skipped; the last line that it wrote says why.
# What a failed one wrote is printed. After 15 minutes a CMD is ended, and has failed.
package() {
  local name=$1 version=$2 log began=$SECONDS status=0 verdict=passed why=''
  shift 2
  [[ " ${PACKAGES:-$name} " == *" $name "* ]] || return 0
  log=$(mktemp)
  timeout -k 10 900 "$@" >"$log" 2>&1 || status=$?
  case $status in
    0) ;;
    77) verdict=skipped why=$(tail -n 1 "$log" | tr '\t' ' ') ;;
    124 | 137) verdict=failed why="it took longer than 15 minutes" ;;
    *) verdict=failed why="status $status" ;;
  esac
  if [[ $verdict == failed ]]; then sed "s/^/$name | /" "$log"; fi
  rm -f "$log"
  printf '%s: %s %s\n' "$verdict" "$name" "$version"
  printf '%s\t%s\t%s\t%s\t%s\n' "$verdict" "$name" "$version" $((SECONDS - began)) "$why" >>"$ECOSYSTEM_RESULTS"
}
