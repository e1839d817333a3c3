# Two jobs, a coprocess and a trap.
caught=0
trap 'caught=$((caught + 1))' USR1
sleep 100000 &
first=$!
while :; do sleep 0.2; done &
second=$!
coproc UPPER { while read -r line; do echo "${line^^}"; done; }

check() {
  kill -USR1 $$
  [ "$caught" = "$1" ] || { echo "the trap was run $caught times"; return; }
  echo "hello $1" >&"${UPPER[1]}"
  read -r -t 30 said <&"${UPPER[0]}"
  [ "$said" = "HELLO $1" ] || { echo "the coprocess says $said"; return; }
  kill -0 "$first" "$second" || { echo "a job is gone"; return; }
  [ "$(jobs -pr | wc -l)" = 3 ] || { echo "not all three jobs run: $(jobs)"; return; }
  (exit 7) &
  wait $!
  [ $? = 7 ] || echo "a new job's exit code is lost"
}

echo ready
n=0
while read -r _; do
  n=$((n + 1))
  check "$n" >/tmp/bad
  if [ -s /tmp/bad ]; then echo "bad $n: $(cat /tmp/bad)"; else echo "ok $n"; fi
done
