#!/usr/bin/env bash
# Finds the programs of a Redis server, or installs them with apt-get, and prints the
# folder that they are in. The server that Debian's package would start is not started:
# tests run their own.
set -euo pipefail
if ! program=$(command -v redis-server); then
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy" # packages may start no service
    chmod +x "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 >&2
  apt-get install -y -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 --no-install-recommends redis-server >&2
  program=$(command -v redis-server)
fi
dirname "$program"
