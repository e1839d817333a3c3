# For tests/ecosystem/*/run.sh to source.
#
# package NAME VERSION CMD ARGS: runs CMD, which uses the package NAME, and notes how it
# went. A CMD that ends with status 77 was skipped; the last line that it wrote says why.
# What a failed one wrote is printed.
package() {
  local name=$1 version=$2 log began=$SECONDS status=0 verdict=passed why=''
  shift 2
  [[ " ${PACKAGES:-$name} " == *" $name "* ]] || return 0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  case $status in
    0) ;;
    77) verdict=skipped why=$(tail -n 1 "$log" | tr '\t' ' ') ;;
    *)
      verdict=failed why="status $status"
      sed "s/^/$name | /" "$log"
      ;;
  esac
  rm -f "$log"
  printf '%s: %s %s\n' "$verdict" "$name" "$version"
  printf '%s\t%s\t%s\t%s\t%s\n' "$verdict" "$name" "$version" $((SECONDS - began)) "$why" >>"$ECOSYSTEM_RESULTS"
}
