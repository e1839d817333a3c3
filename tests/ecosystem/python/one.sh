#!/usr/bin/env bash
# Runs one Python package, "one.sh NAME", in an environment of its own that has
# requirements.txt of its folder, anew when that has changed:
#   settings.sh changes the environment of all of them
#   prepare.sh  makes what the programs need, such as a template
#   example.py  the example of the documentation; model.json is the script of its model,
#               and example.out has the lines that it prints
#   calls.py    makes calls that the example does not
#   test_*.py   the package's own suite
# run.sh of the folder, if it has one, runs in place of all of these.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/tests/ecosystem
folder=$here/python/$1
source tests/ecosystem/fetch.sh
at=$(realpath -m .tools/ecosystem)

# Telemetry is off, and no program downloads at run time what its package holds.
export ANONYMIZED_TELEMETRY=false AGNO_TELEMETRY=false CREWAI_DISABLE_TELEMETRY=true CREWAI_TRACING_ENABLED=false DO_NOT_TRACK=1 \
  HARBOR_TELEMETRY=off LANGSMITH_TRACING=false LITELLM_LOCAL_MODEL_COST_MAP=True OPENAI_AGENTS_DISABLE_TRACING=1 OTEL_SDK_DISABLED=true
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work UV_CACHE_DIR=$at/uv-cache UV_HTTP_TIMEOUT=60

exec 9>"$at.lock"
mkdir -p "$at"
flock 9
if ! cmp -s "$here/python/uv.txt" "$at/uv/stamp"; then
  rm -rf "$at/uv"
  python3 -m venv "$at/uv"
  fetch "$at/uv/bin/pip" install -q --disable-pip-version-check --retries 5 -r "$here/python/uv.txt"
  cp "$here/python/uv.txt" "$at/uv/stamp"
fi
flock -u 9
export UV=$at/uv/bin/uv
# shellcheck source=/dev/null
if [[ -e $folder/settings.sh ]]; then source "$folder/settings.sh"; fi
if [[ -x $folder/run.sh ]]; then
  cd "$work"
  "$folder/run.sh" "$at/$1"
  exit
fi
if ! cmp -s "$folder/requirements.txt" "$at/$1/stamp"; then
  rm -rf "${at:?}/$1"
  "$UV" venv -q --python "$(type -P python3)" "$at/$1"
  fetch "$UV" pip sync -q --python "$at/$1/bin/python" "$folder/requirements.txt"
  cp "$folder/requirements.txt" "$at/$1/stamp"
fi
python=$at/$1/bin/python
cd "$work"

if [[ -x $folder/prepare.sh ]]; then "$folder/prepare.sh"; fi
"$here/printed.py" "$folder/example.out" "$here/model.py" "$folder/model.json" "$python" "$folder/example.py"
if [[ -e $folder/calls.py ]]; then "$python" "$folder/calls.py"; fi
if compgen -G "$folder/test_*.py" >/dev/null; then
  "$python" -m pytest -q -p no:cacheprovider --rootdir "$folder" "$folder"
fi
