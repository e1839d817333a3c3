#!/usr/bin/env bash
# Says how long things take. A script that sources this begins with `suite NAME`,
# and begins each of its steps with `step NAME`. Times go into the file TIMES, by the
# clock and in seconds of the processors. The outermost script makes that file and
# prints it at its end as tables: of steps, of packages and of tests.
set -euo pipefail

# suite NAME [MINUTES]: MINUTES is its share of the time that CI has. Over it, the
# tables end in a warning.
suite() {
  suite=$1 share=$((${2:-0} * 60)) suite_began=${EPOCHREALTIME/./} step='' outermost=''
  cpu
  suite_cpu=$ticks
  CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' go build -o .tools/times ./tests/times
  if [[ -z ${TIMES:-} ]]; then
    TIMES=$(mktemp)
    export TIMES
    outermost=1
  fi
  declare -gA besides=()
  trap suite_ends EXIT
}

step() {
  step_ends
  cpu
  step=$1 step_began=${EPOCHREALTIME/./} step_cpu=$ticks
  printf '\n== %s\n' "$step"
}

# beside NAME CMD ARGS: a step that runs in the background: $! is what joined waits
# for.
beside() {
  local log
  log=$(mktemp)
  set -m # a process group of its own, to be killed as one
  (
    set +m
    trap - EXIT
    step=''
    step "$1"
    "${@:2}"
    step_ends
  ) >"$log" 2>&1 </dev/null &
  set +m
  besides[$!]=$log
}

# joined PID [LINES]: waits for a step that runs beside, and prints the end of what it
# said, or all when it failed.
joined() {
  local status=0
  wait "$1" || status=$?
  tail -n "$( ((status)) && echo +1 || echo "${2:-+1}")" "${besides[$1]}"
  rm -f "${besides[$1]}"
  unset "besides[$1]"
  return $status
}

step_ends() {
  [[ -n $step ]] || return 0
  noted "$step" "$step_began" "$step_cpu" 0
  step=''
}

suite_ends() {
  local status=$? failed=$step pid
  for pid in "${!besides[@]}"; do # a step failed beside which this runs
    kill -- "-$pid" 2>/dev/null || true
    wait "$pid" || true
    rm -f "${besides[$pid]}"
  done
  step_ends
  noted "$suite" "$suite_began" "$suite_cpu" "$share"
  if [[ -n $outermost ]]; then
    .tools/times table
    rm -f "$TIMES"
  fi
  ((status == 0)) || echo "$suite: FAILED${failed:+ in the step: $failed}" >&2
}

# noted NAME BEGAN CPU SHARE: a note of tests/times; BEGAN is in microseconds, CPU in
# ticks of a hundredth of a second.
noted() {
  local us=$((${EPOCHREALTIME/./} - $2)) used of=''
  cpu
  used=$((ticks - $3))
  printf '{"Step":"%s","Seconds":%d.%06d,"CPU":%d.%02d,"Share":%d}\n' "$1" \
    $((us / 1000000)) $((us % 1000000)) $((used / 100)) $((used % 100)) "$4" >>"$TIMES"
  (($4 == 0)) || of=" of its share of $4 s"
  printf '== %s took %d s%s, %d s of the processors\n' "$1" $((us / 1000000)) "$of" $((used / 100))
}

# cpu sets ticks: how many the children of this shell used that have ended.
cpu() {
  local stat
  read -r -a stat <"/proc/$BASHPID/stat"
  ticks=$((stat[15] + stat[16]))
}

# gotest ARGS: go test, as a person reads it.
gotest() { .tools/times test "$@"; }
