#!/usr/bin/env bash
# Finds the programs of a PostgreSQL server, or installs them with apt-get, and prints
# the folder that they are in. The server that Debian's package would start is not
# started: tests run their own.
set -euo pipefail
find_programs() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1; }
dir=$(find_programs)
if [[ -z $dir || ! -x $dir/postgres || ! -x $dir/initdb ]]; then
  install -d /etc/postgresql-common
  echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 >&2
  apt-get install -y -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 --no-install-recommends postgresql >&2
  dir=$(find_programs)
fi
echo "$dir"
