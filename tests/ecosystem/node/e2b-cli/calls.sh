# Makes the calls of the command line that the example does not.
fail() { echo "$*" >&2; exit 1; }
# says TEXT COMMAND...: the command succeeds and prints the text.
says() {
  local text=$1 out
  shift
  out=$("$@" 2>&1) || fail "$* ended with $?: $out"
  [[ $out == *"$text"* ]] || fail "$* printed $out, not $text"
}
# refused TEXT COMMAND...: the command fails and prints the text.
refused() {
  local text=$1 out
  shift
  if out=$("$@" 2>&1 </dev/null); then fail "$* succeeded: $out"; fi
  [[ $out == *"$text"* ]] || fail "$* printed $out, not $text"
}

id=$(e2b sandbox create base --detach --timeout 200 --lifecycle.ontimeout pause --lifecycle.autoresume)
says '"autoResume": true' e2b sandbox info "$id"
says "$id" e2b sandbox info "$id" --format json

# Commands have input, options and an exit code.
[[ $(echo in | e2b sandbox exec "$id" cat) == in ]] || fail "no input"
[[ $(e2b sandbox exec -u root -c /tmp -e 'A=b c' "$id" sh -c 'id -u; pwd; echo $A') == $'0\n/tmp\nb c' ]] || fail "no options"
status=0
e2b sandbox exec "$id" sh -c 'exit 3' || status=$?
((status == 3)) || fail "status $status of a command that ends with 3"
e2b sandbox exec -b "$id" sh -c 'sleep 1; touch /tmp/later'

# A terminal, as script makes one.
says terminal script -qec "e2b sandbox connect $id" /dev/null < <(echo 'echo "ter"minal; exit')

says '"sandbox started"' e2b sandbox logs "$id" --format json
says cpuUsedPct e2b sandbox metrics "$id" --format json
says "$id" e2b sandbox list --template base --limit 5 --order asc --format json

says paused e2b sandbox pause "$id"
says "$id" e2b sandbox list --state paused
says resumed e2b sandbox resume "$id"
e2b sandbox exec "$id" ls /tmp/later

says "$id" e2b sandbox snapshot create "$id" --name calls
snapshot=$(e2b sandbox snapshot list --format json | grep -o '"[^"]*calls:default"' | head -1 | tr -d '"')
copy=$(e2b sandbox create "$snapshot" --detach)
e2b sandbox exec "$copy" ls /tmp/later
e2b sandbox kill "$copy"
says deleted e2b sandbox snapshot delete "$snapshot"

# Templates from a Dockerfile.
mkdir template
cd template
cat >Dockerfile <<'DOCKERFILE'
FROM e2bdev/base
RUN echo made > /made.txt
DOCKERFILE
says calls-template e2b template create calls-template --dockerfile Dockerfile --memory-mb 512 --cpu-count 2
says calls-template e2b template list
made=$(e2b sandbox create calls-template --detach)
[[ $(e2b sandbox exec "$made" cat /made.txt) == made ]] || fail "the template is not what the Dockerfile says"
e2b sandbox kill "$made"
refused "" e2b template publish calls-template --yes
e2b template delete calls-template --yes
refused "" e2b sandbox create calls-template --detach

says 'No running sandboxes' e2b sandbox kill --all --metadata for=nothing
says "$id has been killed" e2b sandbox kill "$id"
says "wasn't found" e2b sandbox kill nosuchsandbox
refused "" env E2B_API_KEY=e2b_0000000000000000000000000000000000000000 e2b sandbox list
says 'Not logged in' e2b auth info
